"""share: every serving node reads the owner's checkpoint, proven by comparing what is read."""

from __future__ import annotations

from typing import Literal

from orchestrator.model.cluster import Node
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import PROOF_BLOCKS, PROOF_SEED, Goal
from orchestrator.model.step import AttachCheckpoint, Blocked, Decision, Failure, ProveCheckpoint, Stage, Step
from orchestrator.plan.missing import unanswered

ATTACH_BOUND_S = 60.0
PROVE_BOUND_S = 300.0


def decide(goal: Goal, facts: ClusterFacts) -> Decision:
    """Attach where it is not attached, prove where it is not proven, compare the proofs."""
    if blocked := unanswered(goal, facts) or _source_fault(goal, facts):
        return blocked
    index = goal.index_sha256(facts)
    if goal.cluster.checkpoint is None or index is None:
        raise AssertionError("the source was just found whole")
    path = goal.cluster.checkpoint.path
    attach = []
    for node in goal.ranked:
        share, mode = facts[node.name].share, _mode(goal, node)
        if share is None or share.source != f"{goal.owner.name}:{path}" or share.mode != mode:
            action = AttachCheckpoint(mode, f"{goal.owner.name}:{path}", path)
            attach.append(Step(node.name, action, "does not reach the checkpoint", ATTACH_BOUND_S))
    if attach:
        return Stage("reach the checkpoint", tuple(attach))
    unproven = [
        node
        for node in goal.ranked
        if (proof := facts[node.name].proof) is None
        or (proof.index_sha256, proof.seed, proof.blocks) != (index, PROOF_SEED, PROOF_BLOCKS)
    ]
    if unproven:
        prove = ProveCheckpoint(index, PROOF_SEED, PROOF_BLOCKS)
        return Stage(
            "prove what is read",
            tuple(
                Step(node.name, prove, "not proven for this checkpoint", PROVE_BOUND_S) for node in unproven
            ),
        )
    return _compare(goal, facts)


def _mode(goal: Goal, node: Node) -> Literal["own", "same-host", "nfs"]:
    if node.name == goal.owner.name:
        return "own"
    return "same-host" if goal.cluster.topology == "single-host" else "nfs"


def _source_fault(goal: Goal, facts: ClusterFacts) -> Blocked | None:
    owner = goal.owner.name
    if goal.cluster.checkpoint is None:
        failure = Failure(
            owner,
            "refused",
            "the cluster file names no checkpoint",
            "set checkpoint: {node, path} in the cluster file",
        )
        return Blocked((failure,))
    if owner not in facts:
        return Blocked(
            (Failure(owner, "unreachable", "has the checkpoint, but did not answer", "sparkyard doctor"),)
        )
    seen = facts[owner].checkpoint
    if seen is None or seen.problems or seen.index_sha256 is None:
        problems = seen.problems if seen else ()
        return Blocked(
            (
                Failure(
                    owner,
                    "refused",
                    f"the checkpoint is not whole: {problems[0] if problems else 'no index'}",
                    "fetch or copy the named file again",
                    problems,
                ),
            )
        )
    return None


def _compare(goal: Goal, facts: ClusterFacts) -> Blocked | None:
    """Blocks when a node read other bytes than the owner. A predicted proof has no digest and is not compared."""
    wanted = facts[goal.owner.name].proof if goal.owner in goal.ranked else facts[goal.head.name].proof
    if wanted is None or wanted.blocks_sha256 is None:
        return None
    wrong = [
        Failure(
            node.name,
            "failed",
            f"reads other bytes than {goal.owner.name}: digest {proof.blocks_sha256[:12]} over {proof.blocks} blocks, "
            f"expected {wanted.blocks_sha256[:12]}",
            "the share shows another folder or a stale copy: unshare, then share again",
        )
        for node in goal.ranked
        if (proof := facts[node.name].proof) is not None
        and proof.blocks_sha256 is not None
        and proof.blocks_sha256 != wanted.blocks_sha256
    ]
    return Blocked(tuple(wrong)) if wrong else None
