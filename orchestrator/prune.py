"""prune: what of ours is superseded on the nodes, with its size; removed only when that was said."""

from __future__ import annotations

from typing import Any

from orchestrator import boots, last_good
from orchestrator.each import each
from orchestrator.errors import Exit
from orchestrator.model.step import Failure
from orchestrator.plan import image
from orchestrator.remote.node import Ask, Reply, reply
from orchestrator.run import give_leases, observe, take_leases
from orchestrator.verbs import Answer, Session

PRUNE_TIMEOUT_S = 900.0
"""Removing 33 GB of small files takes minutes on a busy disk."""


async def prune(session: Session, *, remove: bool) -> Answer:
    """Images of ours, the published copy and the build cache, on every node that answers.

    The profile's image stays, and those of the last good boots: `serve --last-good` needs them.
    Without ``remove`` nothing changes: the answer says what would go.
    """
    goal, _ = session.goal()
    async with session.world() as world:
        facts = await observe(world)
        keep = {image.content(goal), *last_good.images(await boots.read(world))}
        args = {"keep": sorted(keep), "dry": not remove}
        failures = list(await take_leases(world, tuple(facts)))
        fences = dict(world.fences)
        try:

            async def one(name: str) -> Reply:
                return await reply(
                    world.nodes[name], Ask("PruneImages", args, fences[name]), timeout_s=PRUNE_TIMEOUT_S
                )

            replies = await each(fences, one)
        finally:
            await give_leases(world)
    nodes: dict[str, dict[str, Any]] = {}
    for name, answer in replies.items():
        if answer.failure is not None:
            failures.append(answer.failure)
        else:
            nodes[name] = answer.value
    return _answer(nodes, failures, removed=remove)


def _answer(nodes: dict[str, dict[str, Any]], failures: list[Failure], *, removed: bool) -> Answer:
    data = {
        "schema": "sparkyard/prune/v1",
        "ok": not failures,
        "removed": removed,
        "bytes": sum(int(found["bytes"]) for found in nodes.values()),
        "nodes": nodes,
        "failures": [{"node": one.node, "message": one.message, "remedy": one.remedy} for one in failures],
    }
    return Answer(data, Exit.FAILED if failures else Exit.FINE)
