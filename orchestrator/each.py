"""Ask every node at once. A node's failure is a value and never cancels another node's work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from pydantic import ValidationError

from orchestrator.model.facts import ClusterFacts, NodeFacts
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Node, Reply, reply

LOOK_TIMEOUT_S = 30.0
"""A look reads /proc and small files (0.05 s); the bound allows a first connection over a slow link."""


async def each(names: Iterable[str], work: Callable[[str], Awaitable[Reply]]) -> dict[str, Reply]:
    """``work(name)`` for all names side by side."""
    order = list(names)
    replies = await asyncio.gather(*(work(name) for name in order))
    return dict(zip(order, replies, strict=True))


async def look(
    nodes: Mapping[str, Node], args: Mapping[str, dict[str, object]]
) -> tuple[ClusterFacts, tuple[Failure, ...]]:
    """Facts of all nodes that answered, and why the others did not."""
    replies = await each(
        nodes,
        lambda name: reply(nodes[name], Ask("facts", dict(args.get(name, {}))), timeout_s=LOOK_TIMEOUT_S),
    )
    facts: ClusterFacts = {}
    failures = []
    for name, answer in replies.items():
        if answer.failure is not None:
            failures.append(answer.failure)
            continue
        try:
            facts[name] = NodeFacts.model_validate(answer.value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            text = f"its facts are not usable: {where}: {first['msg']} ({error.error_count()} faults)"
            failures.append(Failure(name, "protocol", text))
    return facts, tuple(failures)
