"""pack: each serving node's own disk holds exactly its rank's Engram rows."""

from __future__ import annotations

from orchestrator.model.facts import ClusterFacts, NodeFacts
from orchestrator.model.frozen import identity
from orchestrator.model.goal import Goal
from orchestrator.model.step import Blocked, Decision, Failure, PackDone, Stage, StartPack, Step, Wait
from orchestrator.plan import image
from orchestrator.plan.missing import unanswered

START_BOUND_S = 60.0
PAGE_BYTES = 4096
ROWS_PER_PAGE = 15


def decide(goal: Goal, facts: ClusterFacts) -> Decision:
    """Start a job where the store is not complete, or adopt the one that runs, and wait for all."""
    if blocked := unanswered(goal, facts):
        return blocked
    if goal.profile.engram.mode == "memory":
        return None
    steps, waits = [], []
    for rank, node in enumerate(goal.ranked):
        here = facts[node.name]
        index = here.checkpoint.index_sha256 if here.checkpoint else None
        if (
            index is None
            or here.proof is None
            or index not in (here.proof.index_sha256, goal.index_sha256(facts))
        ):
            failure = Failure(node.name, "refused", "does not reach the checkpoint", "sparkyard share")
            return Blocked((failure,))
        store = goal.store(rank, index)
        if any(found.store == store and found.complete for found in here.stores):
            continue
        contained = goal.profile.engine.runtime == "docker"
        if node.engine_python is None and not contained:
            return Blocked((_no_python(node.name),))
        if lacking := _no_room(goal, here):
            return Blocked((lacking,))
        spec = identity({"store": store, "engine": goal.package.digest})
        if not any(job.kind == "pack" and job.spec == spec and job.state == "running" for job in here.jobs):
            action = StartPack(
                store,
                goal.profile.model.revision,
                goal.profile.parallel.tp,
                rank,
                goal.profile.engram.ownership,
                goal.package.digest,
                node.engine_python or "python3",
                spec,
                image.content(goal) if contained else "",
            )
            steps.append(Step(node.name, action, f"rank {rank}'s tables are not on this disk", START_BOUND_S))
        waits.append(Wait(node.name, PackDone(store), f"rank {rank}'s tables", goal.profile.deadlines.pack_s))
    return Stage("pack the Engram tables", tuple(steps), tuple(waits)) if waits else None


def store_bytes(goal: Goal, table_rows: list[int]) -> int:
    """Size of the largest rank's store: 15 rows of 264 B in each page of 4 KiB (docs/engram-store.md)."""
    tp = goal.profile.parallel.tp
    return sum(-(-rows // (tp * ROWS_PER_PAGE)) * PAGE_BYTES for rows in table_rows)


def _no_room(goal: Goal, here: NodeFacts) -> Failure | None:
    """Before the first byte; what an earlier, unfinished run has written already is counted as room."""
    rows = here.checkpoint.config.get("engram_num_embeddings") if here.checkpoint else None
    if not isinstance(rows, list) or not all(isinstance(entry, int) for entry in rows) or not here.disks:
        return None
    needed, free = store_bytes(goal, rows), here.disks[0].free_bytes
    written = sum(store.bytes for store in here.stores if not store.complete)
    if free + written >= needed:
        return None
    return Failure(
        here.node,
        "refused",
        f"{here.disks[0].path}: {free:,} bytes free, the packed tables need {needed:,}",
        f"make {needed - free:,} bytes of room on that disk, or set another root for this node",
    )


def _no_python(node: str) -> Failure:
    return Failure(
        node,
        "refused",
        "the runtime 'process' needs the engine's Python on this node",
        f"set engine_python of {node} in the cluster file",
    )
