"""A look at every node with its hardware, and what the checks say of it. Changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from orchestrator.checks import examine
from orchestrator.checks.check import Node as SeenNode
from orchestrator.checks.check import Yard
from orchestrator.deep import with_pings
from orchestrator.each import look
from orchestrator.model.cluster import Node as ClusterNode
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.finding import Finding
from orchestrator.model.goal import Goal
from orchestrator.model.hardware import Hardware
from orchestrator.model.profile import EnvSetting
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Node, reply
from orchestrator.run import World

CLOCK_TIMEOUT_S = 5.0
CLOCK_ANSWER_S = 0.5
"""Half of it is the error of an offset; `clock.skew` speaks from one second on."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked at, and what the checks say."""

    yard: Yard
    findings: tuple[Finding, ...]
    facts: ClusterFacts = field(default_factory=dict)


async def diagnose(
    world: World, goal: Goal, ignore: tuple[str, ...] = (), *, sudo: bool = False
) -> Diagnosis:
    """One look with hardware, pings along the links, one judgement."""
    args = {name: {**world.look_args().get(name, {}), "hardware": True, "sudo": sudo} for name in world.nodes}
    facts, failures = await look(world.nodes, args)
    offsets = await clock_offsets(world.nodes, facts)
    yard = await with_pings(world.nodes, make_yard(goal, facts, failures, time.time(), offsets))
    return Diagnosis(yard, examine(yard, ignore), facts)


async def clock_offsets(nodes: Mapping[str, Node], names: Iterable[str]) -> dict[str, float]:
    """Each node's clock minus this one, seconds: asked on a connection that is open, so it answers in milliseconds.

    A node that takes longer than `CLOCK_ANSWER_S` is left out: how slow it is would be taken for its clock.
    """
    found: dict[str, float] = {}

    async def one(name: str) -> None:
        begin = time.time()
        answer = await reply(nodes[name], Ask("ping"), timeout_s=CLOCK_TIMEOUT_S)
        end = time.time()
        theirs = answer.value.get("now_unix_s")
        if answer.failure is None and isinstance(theirs, (int, float)) and 0 <= end - begin <= CLOCK_ANSWER_S:
            found[name] = float(theirs) - (begin + end) / 2

    await asyncio.gather(*(one(name) for name in names))
    return found


def make_yard(
    goal: Goal,
    facts: ClusterFacts,
    failures: tuple[Failure, ...],
    now_unix_s: float,
    offsets: Mapping[str, float],
) -> Yard:
    """The nodes as the checks see them. ``now_unix_s`` is this clock, ``offsets`` how far each node's is from it."""
    why = {failure.node: failure.message for failure in failures}
    profile = goal.profile
    return Yard(
        nodes=tuple(_node(goal, node, facts, why, offsets.get(node.name)) for node in goal.cluster.nodes),
        now_unix_s=now_unix_s,
        topology=goal.cluster.topology,
        docker=profile.engine.runtime == "docker",
        tp=profile.parallel.tp,
        ring_library=profile.nccl is not None,
        environment={
            entry.env: str(entry.value) for entry in profile.settings if isinstance(entry, EnvSetting)
        },
    )


def _node(
    goal: Goal, node: ClusterNode, facts: ClusterFacts, why: dict[str, str], offset_s: float | None
) -> SeenNode:
    here = facts.get(node.name)
    if here is None:
        return SeenNode(node.name, unreachable=why.get(node.name, "did not answer"))
    try:
        hardware = Hardware.model_validate(here.hardware) if here.hardware is not None else None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return SeenNode(node.name, unreachable=f"its hardware facts are not usable: {where}: {first['msg']}")
    ports = goal.profile.ports
    ours = any(rank.alive and rank.deployment == goal.profile.name for rank in here.ranks)
    wanted = {ports.api} | ({ports.gate, ports.rendezvous} if node.name == goal.head.name else set())
    return SeenNode(
        node.name,
        hardware=hardware,
        offset_s=offset_s,
        # While our own rank serves, its ports are taken by whom they should be.
        ports=() if ours else tuple(sorted(goal.port(node, port) for port in wanted)),
        paths=(node.root,),
    )
