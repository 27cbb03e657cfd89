"""Boot records on the nodes: completed after a boot that serves as it should, read for the next plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from orchestrator.each import each
from orchestrator.ledgers import ledgers
from orchestrator.model.boot import BootRecord
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import Failure
from orchestrator.plan import image, serve
from orchestrator.plan.measured import corrections
from orchestrator.remote.node import Ask, reply
from orchestrator.run import World

BOOTS_TIMEOUT_S = 30.0


async def record(world: World, goal: Goal, facts: ClusterFacts) -> tuple[Failure, ...]:
    """Complete the record of the gang that serves now, on every node where that was not done. Says how long it took."""
    name, generation = goal.profile.name, serve.newest(goal, facts)
    wanted = {
        node.name: rank
        for rank, node in enumerate(goal.ranked)
        if node.name in facts
        and (boot := facts[node.name].boot(name, generation)) is not None
        and not boot.proven
    }
    if not wanted:
        return ()
    predicted = _predicted(goal, facts, await read(world, name))
    docker = goal.profile.engine.runtime == "docker"
    brought = {
        "profile": goal.profile.model_dump(mode="json", by_alias=True),
        "package": goal.package.digest,
        "package_bytes": goal.package.size_bytes,
        "image": image.content(goal) if docker else "",
    }

    def asked(node: str) -> Ask:
        args: dict[str, Any] = {"deployment": name, "generation": generation, "rank": wanted[node]}
        args |= {"predicted": predicted.get(wanted[node], {}), "profile": goal.profile.identity}
        return Ask("boot_done", args | {"goal": brought})

    replies = await each(
        wanted, lambda node: reply(world.nodes[node], asked(node), timeout_s=BOOTS_TIMEOUT_S)
    )
    failures = tuple(answer.failure for answer in replies.values() if answer.failure is not None)
    for failure in failures:
        world.emit(Said("warning", f"{failure.node}: the boot is not recorded: {failure.message}"))
    head = replies.get(goal.head.name)
    if head is not None and isinstance(timeline := head.value.get("timeline"), dict):
        told = [(at, phase) for phase, at in timeline.items() if isinstance(at, int | float)]
        text = ", ".join(f"{phase} {at:.0f} s" for at, phase in sorted(told))
        world.emit(Said("note", f"boot of generation {generation}: {text}"))
    return failures


async def read(world: World, deployment: str | None = None) -> tuple[BootRecord, ...]:
    """The whole records of proven boots on all nodes that answer; what is not usable is left out."""
    args = {"deployment": deployment} if deployment else {}
    replies = await each(
        world.nodes, lambda name: reply(world.nodes[name], Ask("boots", args), timeout_s=BOOTS_TIMEOUT_S)
    )
    return tuple(
        found
        for answer in replies.values()
        if answer.failure is None
        for found in _usable(answer.value.get("records", []))
    )


def _usable(entries: object) -> Iterable[BootRecord]:
    for entry in entries if isinstance(entries, list) else ():
        try:
            yield BootRecord.model_validate(entry)
        except ValidationError:
            continue


def _predicted(goal: Goal, facts: ClusterFacts, known: tuple[BootRecord, ...]) -> dict[int, dict[str, int]]:
    """Bytes by line of the ledger for each rank; nothing where the model's tensors are not known."""
    measured = corrections(known, goal.profile.identity)
    found = ledgers(goal.profile, goal.cluster, None, facts, measured).memory
    if found is None:
        return {}
    return {rank.rank: {line.name: line.bytes for line in rank.lines} for rank in found.ranks}
