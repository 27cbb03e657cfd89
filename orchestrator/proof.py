"""Asks every rank of a gang that serves how it serves, and says it."""

from __future__ import annotations

from pydantic import ValidationError

from orchestrator.each import each
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import Failure
from orchestrator.plan import serve
from orchestrator.plan.proven import Item, Shown, failures, judge
from orchestrator.remote.node import Ask, reply
from orchestrator.run import World

SHOWN_TIMEOUT_S = 30.0


async def prove(
    world: World, goal: Goal, facts: ClusterFacts, ignore: tuple[str, ...] = ()
) -> tuple[Failure, ...]:
    """What is wrong with the way it serves; warnings are said. Items in ``ignore`` are warnings at most."""
    generation = serve.newest(goal, facts)
    ranks = {node.name: rank for rank, node in enumerate(goal.ranked)}

    def asked(name: str) -> Ask:
        args = {"deployment": goal.profile.name, "generation": generation, "rank": ranks[name]}
        return Ask("shown", args)

    replies = await each(ranks, lambda name: reply(world.nodes[name], asked(name), timeout_s=SHOWN_TIMEOUT_S))
    shown: dict[int, Shown] = {}
    for name, answer in replies.items():
        try:
            if answer.failure is None:
                shown[ranks[name]] = Shown.model_validate(answer.value)
        except ValidationError as error:
            world.emit(Said("warning", f"{name}: what it shows is not usable: {error.errors()[0]['msg']}"))
    items = judge(goal, shown, ignore=ignore)
    for item in items:
        if item.severity != "good":
            world.emit(Said("warning", _words(item)))
    return failures(items)


def _words(item: Item) -> str:
    return f"{item.node}: rank {item.rank}: {item.text} ({item.name}); {item.remedy or 'look at its log'}"
