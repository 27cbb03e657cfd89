"""stop: desired first, then drain, then prove that every rank is gone and the memory is back."""

from __future__ import annotations

from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import (
    Blocked,
    Decision,
    Failure,
    MemoryBack,
    SetDesired,
    Stage,
    Step,
    StopRank,
    Wait,
)

SHORT_BOUND_S = 60.0
BACK_MAX_S = 180.0
"""Freed memory shows in MemAvailable within minutes; what is not back by then is held by somebody."""


def decide(goal: Goal, facts: ClusterFacts, *, grace_s: float, why: str = "") -> Decision:
    """Ends every rank of the deployment on every node that answered; the others are named at the end.

    Args:
        grace_s: from SIGTERM to SIGKILL. Rank 0 drains its requests in that time and tells the others to end.
        why: kept in the desired record when it is not a person who stops it.
    """
    return (
        _desired(goal, facts, why)
        or ranks(goal, facts, grace_s)
        or _memory(goal, facts)
        or _unanswered(goal, facts)
    )


def _desired(goal: Goal, facts: ClusterFacts, why: str) -> Stage | None:
    name = goal.profile.name
    steps = []
    for here in facts.values():
        record = here.desired
        if record is not None and record.deployment == name and record.state != "stopped":
            action = SetDesired(name, record.generation, "stopped", record.profile, why)
            steps.append(Step(here.node, action, "so that nobody starts it again", SHORT_BOUND_S))
    return Stage("desired: stopped", tuple(steps)) if steps else None


def ranks(goal: Goal, facts: ClusterFacts, grace_s: float) -> Stage | None:
    """All at once: SIGTERM makes rank 0 drain, and a worker, which ignores it, waits for rank 0 or for its SIGKILL."""
    steps = []
    for here in facts.values():
        for found in here.ranks:
            if found.alive and found.deployment == goal.profile.name:
                action = StopRank(found.deployment, found.generation, found.rank, grace_s)
                steps.append(Step(here.node, action, "the deployment shall stop", grace_s + SHORT_BOUND_S))
    return Stage("drain and end every rank", tuple(steps)) if steps else None


def _memory(goal: Goal, facts: ClusterFacts) -> Stage | None:
    """Compared with the newest boot of this deployment on each node."""
    waits = []
    for here in facts.values():
        boots = [boot for boot in here.boots if boot.deployment == goal.profile.name]
        if not boots:
            continue
        newest = max(boots, key=lambda boot: boot.generation)
        wanted = newest.memory_before_bytes - goal.profile.memory.back_tolerance_bytes
        if here.memory.available_bytes < wanted:
            why = f"{wanted / 2**30:.1f} GiB were available before the boot, less the tolerance"
            until = MemoryBack(wanted, goal.profile.name)
            waits.append(Wait(here.node, until, why, min(goal.profile.deadlines.memory_s, BACK_MAX_S)))
    return Stage("wait until the memory is back", waits=tuple(waits)) if waits else None


def _unanswered(goal: Goal, facts: ClusterFacts) -> Blocked | None:
    gone = [node.name for node in goal.cluster.nodes if node.name not in facts]
    return (
        Blocked(
            tuple(
                Failure(
                    name,
                    "unreachable",
                    "did not answer: whether its rank is gone is unknown",
                    "look at the node, then run stop again",
                )
                for name in gone
            )
        )
        if gone
        else None
    )
