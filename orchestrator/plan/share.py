"""share: every serving node reads the owner's checkpoint, proven by comparing what is read."""

from __future__ import annotations

from typing import Literal

from orchestrator.model.cluster import Node
from orchestrator.model.facts import ClusterFacts, NodeFacts
from orchestrator.model.goal import PROOF_BLOCKS, PROOF_SEED, Goal
from orchestrator.model.profile import Share
from orchestrator.model.step import (
    AttachCheckpoint,
    Blocked,
    Decision,
    DetachCheckpoint,
    ExportCheckpoint,
    Failure,
    ProveCheckpoint,
    Stage,
    Step,
    UnexportCheckpoint,
)
from orchestrator.plan.fanout import SLOWER_IS_ANOTHER, Port, meeting
from orchestrator.plan.missing import unanswered

ATTACH_BOUND_S = 240.0
"""Two mounts of 90 s: RDMA may be refused first."""
PROVE_BOUND_S = 300.0
EXPORT_BOUND_S = 60.0
DETACH_BOUND_S = 60.0


def decide(goal: Goal, facts: ClusterFacts) -> Decision:
    """Export and attach where it is not done, prove where it is not proven, compare the proofs."""
    if blocked := unanswered(goal, facts) or _source_fault(goal, facts):
        return blocked
    index = goal.index_sha256(facts)
    if goal.cluster.checkpoint is None or index is None:
        raise AssertionError("the source was just found whole")
    match _ways(goal, facts):
        case Blocked() as blocked:
            return blocked
        case ways:
            pass
    attach = _attach(goal, facts, ways)
    clients = _clients(goal, facts, ways, {step.node for step in attach})
    exported = set(facts[goal.owner.name].exported)
    if clients - exported:
        return _export(goal, clients, "not exported to all of these")
    if attach:
        return Stage("reach the checkpoint", attach)
    if exported - clients and goal.cluster.checkpoint.export is None and ways:
        return _export(goal, clients, "exported to addresses that nobody uses any more")
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


def undo(goal: Goal, facts: ClusterFacts) -> Decision:
    """unshare: nobody reads through the share any more, then the export is taken back."""
    if goal.cluster.checkpoint is None:
        return None
    attached = tuple(
        Step(name, DetachCheckpoint(here.share.source), "reads through the share", DETACH_BOUND_S)
        for name, here in facts.items()
        if here.share is not None and here.share.mode == "nfs"
    )
    if attached:
        return Stage("detach the checkpoint", attached)
    owner = goal.owner.name
    if owner in facts and facts[owner].exported:
        step = Step(
            owner, UnexportCheckpoint(goal.cluster.checkpoint.path), "still exports it", EXPORT_BOUND_S
        )
        return Stage("take the export back", (step,))
    return None


def access(goal: Goal, facts: ClusterFacts) -> dict[str, dict[str, object]] | Blocked:
    """What each node does for the share, by node: ``export`` of the owner, ``attach`` of a node that mounts.

    For the list of rights: a node that has no part in it is not there.
    """
    ways = _ways(goal, facts)
    checkpoint = goal.cluster.checkpoint
    if isinstance(ways, Blocked) or checkpoint is None:
        return ways if isinstance(ways, Blocked) else {}
    found: dict[str, dict[str, object]] = {}
    for node in goal.ranked:
        action = _attachment(goal, node, ways)
        if action.mode == "nfs":
            found[node.name] = {
                "attach": {
                    "server": action.server,
                    "path": action.path,
                    "folder": action.folder,
                    "options": action.options,
                }
            }
    clients = sorted(theirs for _, theirs in ways.values())
    if clients and checkpoint.export is None:
        found[goal.owner.name] = {"export": {"path": checkpoint.path, "clients": clients}}
    return found


def _mode(goal: Goal, node: Node) -> Literal["own", "same-host", "nfs"]:
    if node.name == goal.owner.name or node.checkpoint_path is not None:
        return "own"
    return "same-host" if goal.cluster.topology == "single-host" else "nfs"


def _ways(goal: Goal, facts: ClusterFacts) -> dict[str, tuple[str, str]] | Blocked:
    """For each node that mounts: (address of the owner, own address), over the fastest link that both have."""
    ways, lost = {}, []
    owner = facts[goal.owner.name]
    for node in goal.ranked:
        if _mode(goal, node) != "nfs":
            continue
        pairs = meeting(_ports(owner), _ports(facts[node.name]))
        if not pairs:
            text = f"has no network in common with {goal.owner.name}, which has the checkpoint"
            lost.append(Failure(node.name, "refused", text, "check the cables and addresses with doctor"))
            continue
        ways[node.name] = pairs[0]
    return Blocked(tuple(lost)) if lost else ways


def _ports(here: NodeFacts) -> list[Port]:
    return [Port(port.address, port.speed_mbit) for port in here.ports]


def _clients(
    goal: Goal, facts: ClusterFacts, ways: dict[str, tuple[str, str]], changing: set[str]
) -> set[str]:
    """Addresses that the export is for; none when there is nothing of ours to export.

    A node that is about to change its way reads through the old one until then, and a node of another deployment
    goes on reading: their addresses stay where they are exported already.
    """
    checkpoint = goal.cluster.checkpoint
    if checkpoint is None or checkpoint.export is not None or not ways:
        return set()
    kept = {
        port.address.partition("/")[0]
        for name, here in facts.items()
        if (name in changing or name not in ways) and here.share is not None and here.share.mode == "nfs"
        for port in here.ports
    }
    return {theirs for _, theirs in ways.values()} | (kept & set(facts[goal.owner.name].exported))


def _export(goal: Goal, clients: set[str], why: str) -> Stage:
    checkpoint = goal.cluster.checkpoint
    if checkpoint is None:
        raise AssertionError("checked by the caller")
    action = ExportCheckpoint(checkpoint.path, tuple(sorted(clients)))
    return Stage("export the checkpoint", (Step(goal.owner.name, action, why, EXPORT_BOUND_S),))


def _attach(goal: Goal, facts: ClusterFacts, ways: dict[str, tuple[str, str]]) -> tuple[Step, ...]:
    steps = []
    for node in goal.ranked:
        action = _attachment(goal, node, ways)
        share = facts[node.name].share
        if share is None or (share.source, share.mode) != (action.source, action.mode):
            why = "does not reach the checkpoint"
        elif share.problem:
            why = f"its share is broken: {share.problem}"
        elif share.server != action.server:
            why = f"reads by {share.server}, {action.server} is the fastest way now"
        elif share.asked != action.options:
            why = f"mounted with {share.asked or 'no options'}, the profile asks for {action.options}"
        else:
            continue
        why += _detour(facts[node.name], facts[goal.owner.name], ways.get(node.name))
        steps.append(Step(node.name, action, why, ATTACH_BOUND_S))
    return tuple(steps)


def _detour(here: NodeFacts, owner: NodeFacts, way: tuple[str, str] | None) -> str:
    """Says it when the way is much slower than what the nodes have: a cable is out, or none joins the two."""
    if way is None:
        return ""
    speeds = {port.address.partition("/")[0]: port.speed_mbit for port in (*here.ports, *owner.ports)}
    slow = speeds.get(way[1], 0) * SLOWER_IS_ANOTHER < max(speeds.values(), default=0)
    return "; no fast link leads to its owner now, this is the slow network" if slow else ""


def _attachment(goal: Goal, node: Node, ways: dict[str, tuple[str, str]]) -> AttachCheckpoint:
    checkpoint, mode = goal.cluster.checkpoint, _mode(goal, node)
    if checkpoint is None:
        raise AssertionError("checked by the caller")
    if node.checkpoint_path is not None and node.name != goal.owner.name:
        return AttachCheckpoint("own", f"{node.name}:{node.checkpoint_path}", node.checkpoint_path)
    source = f"{goal.owner.name}:{checkpoint.path}"
    if mode != "nfs":
        return AttachCheckpoint(mode, source, checkpoint.path)
    if checkpoint.export is not None:
        server, _, folder = checkpoint.export.partition(":")
    else:
        server, folder = ways[node.name][0], ""
    return AttachCheckpoint(mode, source, checkpoint.path, server, folder, mount_options(goal.profile.share))


def mount_options(share: Share) -> str:
    """Options of mount(8) for the profile's wishes; 20049 is the port of NFS over RDMA (RFC 8267)."""
    words = ["ro", "hard", f"vers={share.version}", f"proto={share.proto}"]
    words += ["port=20049"] if share.proto == "rdma" else [f"nconnect={share.nconnect}"]
    words += [f"rsize={share.rsize_bytes}", f"timeo={share.timeout_ds}"]
    return ",".join(words)


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
