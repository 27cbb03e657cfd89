"""A row while it is being measured: rounds come in, a row comes out, complete or cut short."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.bench.figures import MIN_ROUNDS, gaps_s, summarise
from orchestrator.bench.loadgen.stream import Sample
from orchestrator.bench.progress import BenchEvent, CellBegan, CellEnded, RoundEnded
from orchestrator.bench.prompts import Message, digest
from orchestrator.bench.record import Cache, Measure, PromptKind, Row
from orchestrator.bench.source import LoadResult

# A chat template's fixed beginning may be cached; more than this a request means that the run was not cold.
TEMPLATE_TOKENS = 32
CACHED_SHARE_OF_COLD = 0.02
CLIENT_BOUND_SHARE = 0.9  # of one core: above this the client may be what is measured
# Events that follow each other faster than this were read together: whoever should have read or sent them in
# between had no CPU, and rates between events then say nothing.
TOGETHER_S = 0.0002
TOGETHER_SHARE = 0.5
Conversation = Sequence[Message]


@dataclass(slots=True)
class Cell:
    """Collects the rounds of one row."""

    measure: Measure
    kind: PromptKind
    streams: int
    cache: Cache
    output_limit_tokens: int
    emit: Callable[[BenchEvent], None]
    rounds: list[Mapping[str, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)
    client_shares: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def begin(self, tokens: int, rounds: int) -> None:
        """Says that the row is begun."""
        self.emit(CellBegan(self.measure, self.kind, self.streams, tokens, rounds))

    def add(
        self,
        figures: Mapping[str, float],
        results: Sequence[LoadResult],
        conversations: Sequence[Conversation],
    ) -> None:
        """One measured round."""
        samples = [sample for result in results for sample in result.samples]
        self.samples += samples
        self.conversations += conversations
        self.client_shares += [result.cpu_s / result.wall_s for result in results if result.wall_s > 0]
        if figures:
            self.rounds.append(figures)
        errors = sum(bool(sample.error) for sample in samples)
        self.emit(RoundEnded(max(1, len(self.rounds)), dict(figures), errors))

    def row(self) -> Row | None:
        """The row of the rounds so far; None before the first."""
        if not self.samples:
            return None
        good = [sample for sample in self.samples if not sample.error]
        errors = [sample.error for sample in self.samples if sample.error]
        share = max(self.client_shares, default=None)
        row = Row(
            measure=self.measure,
            kind=self.kind,
            streams=self.streams,
            cache=self.cache,
            prompt_tokens=_median([sample.prompt_tokens for sample in good]),
            output_tokens=_median([sample.completion_tokens for sample in good]),
            output_limit_tokens=self.output_limit_tokens,
            requests=len(self.samples),
            errors=len(errors),
            tokens=tuple((sample.prompt_tokens, sample.completion_tokens) for sample in self.samples),
            prompts_sha256=digest(self.conversations),
            client_cpu_share=share,
            figures=summarise(self.rounds),
            notes=(*self.notes, *self._remarks(good, errors, share)),
        )
        self.emit(CellEnded(row))
        return row

    def _remarks(self, good: Sequence[Sample], errors: Sequence[str], share: float | None) -> list[str]:
        remarks = []
        if errors:
            remarks.append(f"{len(errors)} of {len(self.samples)} requests failed, first: {errors[0]}")
        if len(self.rounds) < MIN_ROUNDS:
            remarks.append(f"{len(self.rounds)} rounds: fewer than {MIN_ROUNDS} show no spread")
        if share is not None and share > CLIENT_BOUND_SHARE:
            remarks.append(f"the client used {share:.0%} of a core: it may be the limit")
        gaps = [gap for sample in good for gap in gaps_s(sample)]
        together = sum(gap < TOGETHER_S for gap in gaps)
        if together > TOGETHER_SHARE * len(gaps):
            remarks.append(
                f"{together / len(gaps):.0%} of the events came in bursts: client or server lacked CPU, "
                "rates between events are too high; output_tok_s and e2e hold"
            )
        prompt = sum(sample.prompt_tokens for sample in good)
        cached = sum(sample.cached_tokens or 0 for sample in good)
        allowed = max(TEMPLATE_TOKENS * len(good), CACHED_SHARE_OF_COLD * prompt)
        if self.cache is Cache.COLD and cached > allowed:
            remarks.append(f"{cached} of {prompt} prompt tokens came from the prefix cache: not cold")
        return remarks


def _median(values: Sequence[int]) -> int | None:
    return round(statistics.median(values)) if values else None
