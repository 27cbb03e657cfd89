"""Where a decode step's time goes: two metrics pages of each rank, before and after, become seconds per step.
Pure.

Read are SGLang's scheduler counters and the Engram reader's `sparkyard_engram_*` counters. All ranks of a
tensor-parallel group take part in every step, so a step is as slow as the slowest rank's Engram reads; that
excess is what is priced here. A rank whose GPU is slow does not show in any counter of its own (the others
wait for it inside the collective): its clock beside those of its peers bounds what it can cost, and the doctor's
load probe finds the rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.bench.record import NodeDuring, RankSteps, Share, Steps

STAGES = "sglang:scheduler_stage_seconds_total"
IDLE = "sglang:scheduler_idle_seconds_total"
PASSES = "sglang:cuda_graph_passes_total"
DEVICE = "sglang:forward_execution_seconds_total"
TOKENS = "sglang:generation_tokens_total"
VERIFY_CALLS = "sglang:spec_verify_calls_total"
ENGRAM_ROWS = "sparkyard_engram_rows_read_total"
ENGRAM_READ = "sparkyard_engram_read_seconds_total"
CLOCK_SHARE = 0.9  # of the peers' median: sound GPUs under one load differ by some percent
MIN_SHARE = 0.005  # parts below half a percent of a step are left out of the view

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one metrics page that a step view needs."""

    values: Mapping[tuple[str, Labels], float]

    @staticmethod
    def parse(text: str) -> Page:
        """Reads the Prometheus text format.

        Raises:
            ValueError: the text is no metrics page.
        """
        wanted = {STAGES, IDLE, PASSES, DEVICE, TOKENS, VERIFY_CALLS, ENGRAM_ROWS, ENGRAM_READ}
        values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in wanted
        }
        return Page(values)

    def total(self, name: str, label: str = "", begins: str = "") -> float | None:
        """Sum of all samples called ``name`` whose ``label`` begins with ``begins``; None when there are
        none."""
        found = [
            value
            for (known, labels), value in self.values.items()
            if known == name and (not label or dict(labels).get(label, "").startswith(begins))
        ]
        return sum(found) if found else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums of ``name`` by the values of ``label``."""
        sums: dict[str, float] = {}
        for (known, labels), value in self.values.items():
            if known == name:
                key = dict(labels).get(label, "")
                sums[key] = sums.get(key, 0.0) + value
        return sums


def _grown(before: Page, after: Page, name: str, label: str = "", begins: str = "") -> float | None:
    last = after.total(name, label, begins)
    if last is None:
        return None
    grown = last - (before.total(name, label, begins) or 0.0)
    return grown if grown >= 0 else None


def _rank_steps(rank: int, before: Page, after: Page) -> RankSteps | None:
    steps = _grown(before, after, PASSES, "mode", "decode")
    if not steps:
        return None
    stages = after.by(STAGES, "category")
    earlier = before.by(STAGES, "category")
    spent = {stage: seconds - earlier.get(stage, 0.0) for stage, seconds in stages.items() if stage != "idle"}
    device = after.by(DEVICE, "category")
    device_before = before.by(DEVICE, "category")
    spent_device = {
        f"device: {kind}": seconds - device_before.get(kind, 0.0) for kind, seconds in device.items()
    }
    wall_s = sum(after.by(STAGES, "category").values()) - sum(earlier.values())
    busy_s = wall_s - (_grown(before, after, IDLE) or 0.0)
    read_s = _grown(before, after, ENGRAM_READ)
    rows = _grown(before, after, ENGRAM_ROWS)
    tokens, calls = _grown(before, after, TOKENS), _grown(before, after, VERIFY_CALLS)
    if read_s is not None:
        spent_device["engram reads"] = read_s
    parts = tuple(
        Share(what=what, seconds_per_step=seconds / steps, share=seconds / busy_s)
        for what, seconds in sorted({**spent, **spent_device}.items(), key=lambda item: -item[1])
        if busy_s > 0 and seconds >= MIN_SHARE * busy_s
    )
    return RankSteps(
        rank=rank,
        steps=round(steps),
        step_s=busy_s / steps,
        parts=parts,
        engram_rows_per_step=None if rows is None else rows / steps,
        engram_read_s_per_step=None if read_s is None else read_s / steps,
        accept_length=tokens / calls if tokens and calls else None,
    )


def step_view(before: Mapping[int, Page], after: Mapping[int, Page]) -> Steps:
    """Steps between two looks at the ranks' metrics pages.

    The time of prefill passes in between is part of a step's time here; the notes say how many there were.
    """
    ranks = tuple(
        steps
        for rank in sorted(after)
        if rank in before and (steps := _rank_steps(rank, before[rank], after[rank])) is not None
    )
    notes = []
    if not ranks:
        notes.append("no rank counted a decode step: the metrics of SGLang are off, or nothing was decoded")
    prefills = max(
        (
            _grown(before[rank], after[rank], PASSES, "mode", "prefill") or 0.0
            for rank in after
            if rank in before
        ),
        default=0.0,
    )
    if prefills:
        notes.append(f"{prefills:.0f} prefill passes are in the time")
    reads = {
        steps.rank: steps.engram_read_s_per_step
        for steps in ranks
        if steps.engram_read_s_per_step is not None
    }
    if len(reads) < 2:
        notes.append("Engram reads of fewer than two ranks are known: what a slow rank costs cannot be told")
        return Steps(ranks=ranks, notes=tuple(notes))
    slowest = max(reads, key=lambda rank: reads[rank])
    step_s = max(steps.step_s for steps in ranks)
    excess_s = reads[slowest] - statistics.median(reads.values())
    return Steps(
        ranks=ranks,
        slowest_rank=slowest,
        slow_rank_cost=excess_s / step_s if step_s > 0 else None,
        notes=tuple(notes),
    )


def with_clocks(steps: Steps | None, nodes: Sequence[NodeDuring]) -> Steps | None:
    """The view with what each rank's slow GPU clock may cost: at most, because not all of a step follows the clock."""
    ranks = {
        node.rank: node for node in nodes if node.rank is not None and node.sm_clock_high_mhz is not None
    }
    if steps is None or len(ranks) < 2:
        return steps
    notes = []
    for rank, node in sorted(ranks.items()):
        middle = statistics.median(
            other.sm_clock_high_mhz or 0.0 for number, other in ranks.items() if number != rank
        )
        clock = node.sm_clock_high_mhz or 0.0
        if clock < CLOCK_SHARE * middle:
            notes.append(
                f"rank {rank}: the GPU of {node.node} ran at {clock:.0f} MHz at most, its peers' at {middle:.0f}: "
                f"up to {1 - clock / middle:.0%} of a step may be all others waiting for it"
            )
    return steps.model_copy(update={"notes": (*steps.notes, *notes)})
