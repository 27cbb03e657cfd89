"""Asks every rank of a gang that serves how it serves, and says it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from orchestrator.each import each
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.plan import serve
from orchestrator.plan.proven import Item, Paced, Shown, judge
from orchestrator.remote.node import Ask, reply
from orchestrator.run import World

SHOWN_TIMEOUT_S = 30.0
GENERATIONS = 3
"""That the request `paced` asks for; each may take what a canary may."""


async def prove(
    world: World, goal: Goal, facts: ClusterFacts, ignore: tuple[str, ...] = ()
) -> tuple[Item, ...]:
    """How it serves, item by item; what is not good is said. Items in ``ignore`` are warnings at most."""
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
    items = judge(goal, shown, await _paced(world, goal), ignore=ignore)
    for item in items:
        if item.severity != "good":
            world.emit(Said("warning", _words(item)))
    return items


def proof_json(items: tuple[Item, ...]) -> list[dict[str, Any]]:
    """Items as objects."""
    return [asdict(item) for item in items]


async def _paced(world: World, goal: Goal) -> Paced | str:
    """The timed generations, or why there are none."""
    profile, head = goal.profile, goal.head
    bound_s = profile.deadlines.canary_s
    args = {
        "port": goal.port(head, profile.ports.api),
        "model": profile.model.served_name,
        "timeout_s": bound_s,
        "key_file": profile.ports.api_key_file,
    }
    answer = await reply(
        world.nodes[head.name], Ask("paced", args), timeout_s=GENERATIONS * bound_s + SHOWN_TIMEOUT_S
    )
    if answer.failure is not None:
        return answer.failure.message
    try:
        return Paced.model_validate(answer.value)
    except ValidationError as error:
        return f"not usable: {error.errors()[0]['msg']}"


def _words(item: Item) -> str:
    return f"{item.node}: rank {item.rank}: {item.text} ({item.name}); {item.remedy or 'look at its log'}"
