"""Before a gang is started, and before the one that serves is touched: what would make the new one fail."""

from __future__ import annotations

from pydantic import ValidationError

from orchestrator.checks import REACHABLE
from orchestrator.checks.check import PROBE_MAX_AGE_S, value
from orchestrator.each import each
from orchestrator.examination import Diagnosis, diagnose
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.goal import Goal
from orchestrator.model.step import Failure
from orchestrator.plan.sources import Sources, compare, named_files
from orchestrator.remote.node import Ask, reply
from orchestrator.run import World

SOURCES_TIMEOUT_S = 120.0
"""A library of 400 MB is hashed in a second; a cold disk takes longer."""
FOREIGN = "gpu.foreign"
"""The doctor warns of it; a start would fight with it for the one memory."""
OURS = frozenset({"mem.avail", "mem.psi", "mem.swap", FOREIGN})
"""Checks that see our own gang, which is about to be replaced: they are judged where none of its ranks lives.

Only the labels of containers tell our own use of the GPU from another's.
"""


async def preflight(
    world: World, goal: Goal, facts: ClusterFacts, ignore: tuple[str, ...] = ()
) -> tuple[Failure, ...]:
    """What forbids the start: errors of the doctor, a foreign user of the GPU, sources that differ between ranks.

    Args:
        facts: of a look of just now; tells where ranks of the deployment live.
        ignore: ids of checks, and items of `orchestrator.plan.sources`, that are accepted.
    """
    found = await diagnose(world, goal, ignore)
    _say_ages(world, found)
    failures = [_refusal(finding) for finding in found.findings if _forbids(finding, goal, facts, ignore)]
    seen, silent = await _sources(world, goal, facts)
    index = goal.index_sha256(facts)
    if index is not None and not silent:
        failures += compare(goal, index, seen, ignore)
    return (*failures, *silent)


def _forbids(finding: Finding, goal: Goal, facts: ClusterFacts, ignore: tuple[str, ...]) -> bool:
    if finding.because_of or finding.check in ignore or finding.check == REACHABLE:
        return False
    if finding.node and finding.node not in {node.name for node in goal.ranked}:
        return False
    here = facts.get(finding.node)
    busy = here is not None and any(
        rank.alive and rank.deployment == goal.profile.name for rank in here.ranks
    )
    told_apart = finding.check == FOREIGN and goal.profile.engine.runtime == "docker"
    if finding.check in OURS and busy and not told_apart:
        return False
    if finding.check == FOREIGN:
        return finding.severity in {Severity.ERROR, Severity.WARNING}
    return finding.severity is Severity.ERROR


def _refusal(finding: Finding) -> Failure:
    place = f" {finding.link}" if finding.link else ""
    return Failure(
        finding.node or "cluster",
        "refused",
        f"{finding.check}{place}: {finding.measured}; expected {finding.expected}",
        f"{finding.remedy or 'see sparkyard doctor'}; --ignore {finding.check} accepts it",
        (finding.evidence,) if finding.evidence else (),
    )


def _say_ages(world: World, found: Diagnosis) -> None:
    """Whether load probes were run lately: without them a slow link or GPU shows only once it serves."""
    newest: dict[str, float] = {}
    for node in found.yard.seen:
        probes = value(node.facts.probes)
        stamps = (
            [
                item.unix_s
                for item in (probes.burn, probes.gemv, probes.nvme, probes.allreduce)
                if item is not None
            ]
            + [item.unix_s for item in probes.rdma]
            if probes
            else []
        )
        if stamps and (age_s := found.yard.now_unix_s - max(stamps)) <= PROBE_MAX_AGE_S:
            newest[node.name] = age_s
    if newest:
        hours = max(newest.values()) / 3600
        world.emit(
            Said("note", f"preflight uses the load probes of {', '.join(newest)}, up to {hours:.1f} h old")
        )


async def _sources(
    world: World, goal: Goal, facts: ClusterFacts
) -> tuple[dict[int, Sources], tuple[Failure, ...]]:
    """What each rank would be started from. A node that does not tell is a failure."""
    docker = goal.profile.engine.runtime == "docker"
    index = goal.index_sha256(facts) or ""
    ranks = {node.name: rank for rank, node in enumerate(goal.ranked)}

    def asked(name: str) -> Ask:
        rank = ranks[name]
        return Ask(
            "sources",
            {
                "rank": rank,
                "engine": "" if docker else goal.package.digest,
                "python": "" if docker else goal.cluster.node(name).engine_python or "",
                "tables": goal.store(rank, index) if goal.profile.engram.mode == "disk" else "",
                "slices": goal.slices(rank, index) or "",
                "files": list(named_files(goal)),
            },
        )

    replies = await each(
        ranks, lambda name: reply(world.nodes[name], asked(name), timeout_s=SOURCES_TIMEOUT_S)
    )
    seen, silent = {}, []
    for name, answer in replies.items():
        if answer.failure is not None:
            silent.append(answer.failure)
            continue
        try:
            seen[ranks[name]] = Sources.model_validate(answer.value)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(str(part) for part in fault["loc"])
            silent.append(Failure(name, "protocol", f"its sources are not usable: {where}: {fault['msg']}"))
    return seen, tuple(silent)
