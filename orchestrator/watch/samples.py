"""Watch every node over its held connection, until cancelled. A silent node is asked again, ever slower."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from orchestrator.model.sample import NodeSampled, NodeSilent, Sample, Watched
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Node, Progressed, Reply

STREAM_S = 24 * 3600.0
"""A stream is opened anew once a day, on the same connection: every request has a bound."""
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
SILENCE_PACES = 5
SILENCE_MIN_S = 15.0
"""No sample for five paces, and for this long: the agent hangs although its channel is open."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between samples, between GPU readings, and between those while a rank serves; 0: no GPU readings."""

    every_s: float = 2.0
    gpu_every_s: float = 5.0
    gpu_serving_every_s: float = 30.0


async def watch(nodes: Mapping[str, Node], emit: Callable[[Watched], None], pace: Pace) -> None:
    """Runs until it is cancelled. A failure of one node is an event, never an exception."""
    async with asyncio.TaskGroup() as tasks:
        for node in nodes.values():
            tasks.create_task(_watch_one(node, emit, pace))


async def _watch_one(node: Node, emit: Callable[[Watched], None], pace: Pace) -> None:
    retry_s = RETRY_FIRST_S
    while True:
        failure, samples = await _stream(node, emit, pace)
        if failure is not None:
            emit(NodeSilent(node.name, failure))
            retry_s = RETRY_FIRST_S if samples else min(2 * retry_s, RETRY_MAX_S)
            await asyncio.sleep(retry_s)


async def _stream(node: Node, emit: Callable[[Watched], None], pace: Pace) -> tuple[Failure | None, int]:
    """One stream to its end: why it ended (None: its day is over), and how many samples it gave."""
    args = {
        "every_s": pace.every_s,
        "gpu_every_s": pace.gpu_every_s,
        "gpu_serving_every_s": pace.gpu_serving_every_s,
    }
    silence_s = max(SILENCE_PACES * pace.every_s, SILENCE_MIN_S)
    stream = aiter(node.ask(Ask("watch", args), timeout_s=STREAM_S))
    samples = 0
    try:
        while True:
            async with asyncio.timeout(silence_s):
                message = await anext(stream)
            match message:
                case Progressed(data=data):
                    emit(NodeSampled(node.name, Sample.model_validate(data.get("sample"))))
                    samples += 1
                case Reply(failure=failure):
                    day_over = failure is not None and failure.kind == "timeout" and samples > 0
                    return (None if day_over else failure or _ended(node)), samples
    except TimeoutError:
        return Failure(node.name, "timeout", f"no sample for {silence_s:.0f} s: the node hangs"), samples
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        return Failure(node.name, "protocol", f"its sample is not usable: {where}: {fault['msg']}"), samples
    except StopAsyncIteration:
        return _ended(node), samples
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()


def _ended(node: Node) -> Failure:
    return Failure(node.name, "protocol", "the stream of samples ended")
