"""pack: each serving node's own disk holds exactly its rank's Engram rows, and its weight slices."""

from __future__ import annotations

from typing import Literal

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
        for what, store in _wanted(goal, rank, index):
            if any(found.store == store and found.complete for found in here.stores):
                continue
            contained = goal.profile.engine.runtime == "docker"
            if node.engine_python is None and not contained:
                return Blocked((_no_python(node.name),))
            if what == "tables" and (lacking := _no_room(goal, here)):
                return Blocked((lacking,))
            action = _start(goal, node.engine_python or "python3", rank, what, store)
            running = [job.spec for job in here.jobs if job.kind == "pack" and job.state == "running"]
            if action.spec not in running:
                why = f"rank {rank}'s {what} are not on this disk"
                steps.append(Step(node.name, action, why, START_BOUND_S))
            deadline_s = goal.profile.deadlines.pack_s
            waits.append(Wait(node.name, PackDone(store, what), f"rank {rank}'s {what}", deadline_s))
    return Stage("pack tables and slices", tuple(steps), tuple(waits)) if waits else None


def _wanted(goal: Goal, rank: int, index: str) -> list[tuple[Literal["tables", "slices"], str]]:
    slices = goal.slices(rank, index)
    found: list[tuple[Literal["tables", "slices"], str]] = [("tables", goal.store(rank, index))]
    return found if slices is None else [*found, ("slices", slices)]


def _start(goal: Goal, python: str, rank: int, what: Literal["tables", "slices"], store: str) -> StartPack:
    padding = goal.profile.parallel.padding if what == "slices" else None
    return StartPack(
        store,
        goal.profile.model.revision,
        goal.profile.parallel.tp,
        rank,
        goal.profile.engram.ownership,
        goal.package.digest,
        python,
        identity({"store": store, "engine": goal.package.digest}),
        image.content(goal) if goal.profile.engine.runtime == "docker" else "",
        what,
        padding.num_attention_heads if padding else 0,
        padding.o_groups if padding else 0,
    )


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
