"""A plan needs every serving node: one that did not answer blocks it, by name."""

from __future__ import annotations

from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import Blocked, Failure


def unanswered(goal: Goal, facts: ClusterFacts) -> Blocked | None:
    """The serving nodes without facts."""
    gone = [node.name for node in goal.ranked if node.name not in facts]
    if len(goal.ranked) < goal.profile.parallel.tp:
        return Blocked(
            (
                Failure(
                    goal.head.name,
                    "refused",
                    f"the profile needs {goal.profile.parallel.tp} nodes, the cluster file has {len(goal.ranked)}",
                    "add nodes to the cluster file, or choose a profile with a smaller tp",
                ),
            )
        )
    if not gone:
        return None
    return Blocked(
        tuple(
            Failure(name, "unreachable", "did not answer, and a gang needs every rank", "sparkyard doctor")
            for name in gone
        )
    )
