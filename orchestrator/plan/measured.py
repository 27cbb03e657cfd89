"""What earlier boots say about the next one: bytes of the ledger's lines, and how long a phase takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from orchestrator.model.boot import BootRecord
from orchestrator.model.facts import NodeFacts, Phase
from orchestrator.model.step import RankAt

GRAPHS, REST = "CUDA graphs", "CUDA context, kernels and engine processes"
"""Lines of the ledger that no source gives and a boot does."""
NOT_IN_A_BOOT = ("operating system", "prefill transient", "page cache", "floor of the guard", GRAPHS, REST)
"""Starts of lines that are no use of memory by the boot itself, or that are measured here."""
BOOTS_CONSIDERED = 5
"""The newest ones: caches warm up, and a node's disk changes."""


def corrections(records: Iterable[BootRecord], profile: str) -> dict[int, dict[str, int]]:
    """For each rank the bytes of lines that its newest proven boot of this very profile measured.

    `profile` is its identity: another setting is another boot. What a boot took beside its known lines is the rest;
    it is what MemAvailable fell by at its lowest, so that a long prompt that was served meanwhile counts too.
    """
    newest: dict[int, BootRecord] = {}
    for record in records:
        if record.proven and record.profile == profile and record.predicted:
            known = newest.get(record.rank)
            if known is None or record.recorded_unix_s >= known.recorded_unix_s:
                newest[record.rank] = record
    return {rank: lines for rank, record in newest.items() if (lines := _lines(record))}


def _lines(record: BootRecord) -> dict[str, int]:
    seen, found = record.measured, {}
    if seen.graphs_bytes is not None:
        found[GRAPHS] = seen.graphs_bytes
    if seen.memory_before_bytes is not None and seen.memory_low_water_bytes is not None:
        used = seen.memory_before_bytes - seen.memory_low_water_bytes
        known = sum(size for name, size in record.predicted.items() if not name.startswith(NOT_IN_A_BOOT))
        graphs = found.get(GRAPHS, record.predicted.get(GRAPHS, 0))
        if (rest := used - known - graphs) > 0:
            found[REST] = rest
    return found


def phase_s(here: NodeFacts, deployment: str, phase: Phase) -> float | None:
    """Seconds from a boot's start to ``phase``: the median of the newest proven boots on this node."""
    known = [
        boot.timeline[phase]
        for boot in sorted(here.boots, key=lambda boot: boot.generation)
        if boot.deployment == deployment and boot.proven and phase in boot.timeline
    ]
    return median(known[-BOOTS_CONSIDERED:]) if known else None


def elapsed_and_expected_s(here: NodeFacts, until: RankAt) -> tuple[float, float] | None:
    """How long this boot has run, and when earlier ones were where it shall be. None before the first boot."""
    expected = phase_s(here, until.deployment, until.phase)
    boot = here.boot(until.deployment, until.generation)
    if expected is None or boot is None or boot.started_unix_s <= 0:
        return None
    return max(0.0, here.now_unix_s - boot.started_unix_s), expected
