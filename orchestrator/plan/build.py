"""build: every serving node has the engine package, made once and known by its digest."""

from __future__ import annotations

from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import Decision, FetchBlob, InstallEngine, PutBlob, Stage, Step
from orchestrator.plan import image
from orchestrator.plan.missing import unanswered

PUT_BOUND_S = 60.0
FETCH_BOUND_S = 300.0
INSTALL_BOUND_S = 120.0


def decide(goal: Goal, facts: ClusterFacts) -> Decision:
    """The head gets the package from the controller; the others fetch from the head only what they lack."""
    if goal.profile.engine.runtime == "docker":
        return image.decide(goal, facts)
    if blocked := unanswered(goal, facts):
        return blocked
    digest, size = goal.package.digest, goal.package.size_bytes
    lacking = [node for node in goal.ranked if digest not in facts[node.name].engines]
    without_blob = [node for node in lacking if digest not in facts[node.name].blobs]
    head = goal.head
    if without_blob and digest not in facts[head.name].blobs:
        step = Step(head.name, PutBlob(digest, size), "no node has this engine package yet", PUT_BOUND_S)
        return Stage("send the engine package to the head", (step,))
    if without_blob:
        return Stage(
            "fan the engine package out",
            tuple(
                Step(node.name, FetchBlob(digest, size, head.name), "lacks the engine package", FETCH_BOUND_S)
                for node in without_blob
            ),
        )
    if lacking:
        return Stage(
            "install the engine package",
            tuple(
                Step(node.name, InstallEngine(digest), "has it, not unpacked", INSTALL_BOUND_S)
                for node in lacking
            ),
        )
    return None
