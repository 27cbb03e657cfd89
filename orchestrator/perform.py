"""Do one step: turn an action into requests. Small data goes over the channel, bulk from node to node."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

from orchestrator.model.cluster import Cluster
from orchestrator.model.step import Failure, FetchBlob, OfferImage, PullImage, PutBlob, Step
from orchestrator.remote.node import Ask, Node, Progressed, Reply, reply

OFFER_TIMEOUT_S = 30.0

OnProgress = Callable[[dict[str, Any]], None]


async def perform(
    step: Step,
    nodes: Mapping[str, Node],
    cluster: Cluster,
    fences: Mapping[str, int],
    payloads: Mapping[str, bytes],
    progress: OnProgress,
) -> Reply:
    """The reply of the node that the step is for.

    Args:
        fences: fence of the lease of each node.
        payloads: contents of the blobs that the controller has, by digest.
    """
    what, args, fence = type(step.action).__name__, asdict(step.action), fences.get(step.node)
    match step.action:
        case PutBlob(digest=digest):
            data = base64.b64encode(payloads[digest]).decode()
            return await _ask(
                nodes[step.node], Ask(what, {**args, "data": data}, fence), step.bound_s, progress
            )
        case FetchBlob(source=source):
            return await _fetch(step, nodes, cluster, args, fence, source, progress)
        case OfferImage():
            request = Ask(what, {**args, "token": secrets.token_urlsafe(32)}, fence)
            return await _ask(nodes[step.node], request, step.bound_s, progress)
        case PullImage(origin=origin, content=content):
            offer = await reply(
                nodes[origin], Ask("image-offer", {"content": content}), timeout_s=OFFER_TIMEOUT_S
            )
            if offer.failure is not None:
                return Reply(
                    {}, replace(offer.failure, node=step.node, message=f"{origin}: {offer.failure.message}")
                )
            request = Ask(what, {**args, "offer": offer.value}, fence)
            return await _ask(nodes[step.node], request, step.bound_s, progress)
        case _:
            return await _ask(nodes[step.node], Ask(what, args, fence), step.bound_s, progress)


async def _ask(node: Node, request: Ask, timeout_s: float, progress: OnProgress) -> Reply:
    answer = Reply({}, Failure(node.name, "protocol", f"{request.what}: no reply"))
    async for message in node.ask(request, timeout_s=timeout_s):
        match message:
            case Progressed(data=data):
                progress(data)
            case Reply():
                answer = message
    return answer


async def _fetch(
    step: Step,
    nodes: Mapping[str, Node],
    cluster: Cluster,
    args: dict[str, Any],
    fence: int | None,
    source: str,
    progress: OnProgress,
) -> Reply:
    """The source offers the blob on its fabric address for as long as this request lasts; then the node fetches."""
    offer = Ask(
        "offer",
        {"digest": args["digest"], "address": cluster.node(source).fabric, "lifetime_s": step.bound_s},
    )
    async with aclosing(nodes[source].ask(offer, timeout_s=step.bound_s)) as offered:  # type: ignore[type-var]
        async for message in offered:
            match message:
                case Progressed(data={"url": str() as url, "token": str() as token}):
                    if not url.startswith(f"http://{offer.args['address']}:"):
                        text = f"{source} offers the file at {url[:200]}, expected at {offer.args['address']}"
                        return Reply({}, Failure(step.node, "protocol", text))
                    request = Ask(type(step.action).__name__, {**args, "url": url, "token": token}, fence)
                    return await _ask(nodes[step.node], request, step.bound_s, progress)
                case Reply(failure=Failure() as failure):
                    text = f"{source} cannot offer the file: {failure.message}"
                    return Reply({}, Failure(step.node, failure.kind, text, failure.remedy))
                case Reply():
                    break
    return Reply({}, Failure(step.node, "protocol", f"{source} ended its offer before anything was fetched"))
