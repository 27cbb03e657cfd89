"""Whether a condition that is waited for holds, cannot hold any more, or is still open. Pure."""

from __future__ import annotations

from typing import assert_never

from orchestrator.model.facts import ClusterFacts, NodeFacts
from orchestrator.model.step import Failure, FetchDone, MemoryBack, PackDone, RankAt, Wait
from orchestrator.plan.predict import FETCH_JOB, reached

OWN_REASONS = ("memory_floor", "plugin_missing", "hang", "spawn_failed")
"""Reasons of the guard (docs/formats.md) that are causes, never consequences of a peer's end."""


def holds(wait: Wait, facts: ClusterFacts) -> bool | tuple[Failure, ...]:
    """True, False (not yet), or the failures that make it impossible. A node without facts is "not yet"."""
    here = facts.get(wait.node)
    if here is None:
        return False
    match wait.until:
        case PackDone(store=store):
            return _packed(here, store)
        case FetchDone(spec=spec):
            return _fetched(here, spec)
        case RankAt() as until:
            return _rank_at(facts, here, until)
        case MemoryBack(available_bytes=wanted):
            return here.memory.available_bytes >= wanted
        case _:
            assert_never(wait.until)


def _packed(here: NodeFacts, store: str) -> bool | tuple[Failure, ...]:
    """The store is complete a moment before its job has ended; both are waited for."""
    job = next((found for found in here.jobs if found.id == f"pack-{store[:16]}"), None)
    if job is not None and job.state == "running":
        return False
    if any(found.store == store and found.complete for found in here.stores):
        return True
    if job is None:
        return False
    text = f"the pack job ended: {job.error or job.state}"
    return (Failure(here.node, "failed", text, "run pack again: it resumes", job.log_tail),)


def _fetched(here: NodeFacts, spec: str) -> bool | tuple[Failure, ...]:
    for job in here.jobs:
        if (job.id, job.spec) == (FETCH_JOB, spec):
            if job.state in {"failed", "lost"}:
                text = f"the fetch ended: {job.error}"
                return (Failure(here.node, "failed", text, "run fetch again: it goes on", job.log_tail),)
            return job.state == "done"
    return False


def _rank_at(facts: ClusterFacts, here: NodeFacts, until: RankAt) -> bool | tuple[Failure, ...]:
    """One dead rank stops all: the wait for rank 0 fails with every rank that has ended."""
    if ended := ended_ranks(facts, until.deployment, until.generation):
        return ended
    if unwanted := _unwanted(facts, until.deployment):
        return unwanted
    rank = here.rank(until.deployment, until.rank, until.generation)
    if rank is None:
        return (Failure(here.node, "failed", f"rank {until.rank} is not here any more", "sparkyard status"),)
    return reached(rank, until)


def _unwanted(facts: ClusterFacts, deployment: str) -> tuple[Failure, ...]:
    """Somebody let the deployment rest while it was being started."""
    return tuple(
        Failure(
            here.node, "refused", f"{deployment} shall be {here.desired.state}: somebody said so meanwhile"
        )
        for here in facts.values()
        if here.desired is not None
        and here.desired.deployment == deployment
        and here.desired.state != "serving"
    )


def ended_ranks(facts: ClusterFacts, deployment: str, generation: int) -> tuple[Failure, ...]:
    """A failure for every rank of the gang that has ended, the likely cause first.

    That is one that its guard ended for a reason of its own; then the one whose log fell silent first: the others
    still write that a peer is gone.
    """
    found = [
        (
            not rank.ended.startswith(OWN_REASONS),
            rank.last_log_unix_s or 0.0,
            rank.rank,
            here.node,
            rank,
        )
        for here in facts.values()
        for rank in here.ranks
        if (rank.deployment, rank.generation) == (deployment, generation) and not rank.alive
    ]
    return tuple(
        Failure(
            node,
            "failed",
            f"rank {rank.rank} ended: {rank.ended}",
            f"sparkyard logs --rank {rank.rank}",
            rank.log_tail,
        )
        for _, _, _, node, rank in sorted(found, key=lambda entry: entry[:3])
    )


def timed_out(wait: Wait, facts: ClusterFacts) -> Failure:
    """The failure of a wait whose deadline has passed: what was seen last against what was expected."""
    here = facts.get(wait.node)
    if here is None:
        return Failure(
            wait.node, "unreachable", f"did not answer while waiting: {wait.why}", "sparkyard doctor"
        )
    evidence: tuple[str, ...] = ()
    match wait.until:
        case PackDone() | FetchDone():
            kind = "pack" if isinstance(wait.until, PackDone) else FETCH_JOB
            seen = ", ".join(
                f"{job.done:,} of {job.total:,} {job.unit}" for job in here.jobs if job.kind == kind
            )
        case RankAt(deployment=deployment, rank=rank, generation=generation, phase=phase):
            found = here.rank(deployment, rank, generation)
            seen = f"phase {found.phase if found else 'none'}, expected {phase}"
            evidence = found.log_tail if found else ()
        case MemoryBack(available_bytes=wanted):
            seen = f"{here.memory.available_bytes:,} bytes available, expected {wanted:,}"
        case _:
            assert_never(wait.until)
    message = f"{wait.why}: not within {wait.deadline_s:.0f} s ({seen or 'nothing seen'})"
    return Failure(
        wait.node, "timeout", message, "sparkyard logs; a longer deadline is in the profile", evidence
    )
