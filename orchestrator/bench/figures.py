"""From samples to figures. Pure."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.bench.loadgen.stream import Sample
from orchestrator.bench.record import Figure

# A row is called noisy when its rounds differ by more than this share of their median: ordinary run-to-run
# spread of decode on a quiet machine is below 5 %, a slow GPU state moves it by 30 to 50 %.
NOISY_SPREAD = 0.15
MIN_OVERLAP = 0.5  # of the longest stream: a shorter window of all streams together says little
MIN_ROUNDS = 3  # below that a median is one run with a neighbour

UNITS = {
    "ttft_p50_ms": "ms",
    "ttft_p95_ms": "ms",
    "gap_p50_ms": "ms",
    "gap_p99_ms": "ms",
    "token_p50_ms": "ms",
    "e2e_p50_ms": "ms",
    "stream_tok_s": "tok/s",
    "stream_p5_tok_s": "tok/s",
    "decode_tok_s": "tok/s",
    "output_tok_s": "tok/s",
    "requests_s": "req/s",
    "prefill_tok_s": "tok/s",
    "tokens_per_event": "tokens",
    "found": "share",
    "ttft_alone_ms": "ms",
    "ttft_behind_ms": "ms",
    "stall_ms": "ms",
    "cached_share": "share",
    "ttft_last_turn_ms": "ms",
}


def quantile(values: Iterable[float], share: float) -> float:
    """Linear-interpolated quantile, ``share`` in 0 … 1.

    Raises:
        ValueError: no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def ttft_s(sample: Sample) -> float:
    """Seconds from sending to the first event with text."""
    return sample.token_times_s[0] - sample.start_s


def gaps_s(sample: Sample) -> list[float]:
    """Seconds between successive events with text."""
    return [later - earlier for earlier, later in itertools.pairwise(sample.token_times_s)]


def stream_rate(sample: Sample) -> float | None:
    """Tokens a second after the first event: that event's tokens left out, as its time is the prefill's.

    None when fewer than two events came.
    """
    events = len(sample.token_times_s)
    span_s = sample.token_times_s[-1] - sample.token_times_s[0] if events > 1 else 0.0
    return sample.completion_tokens * (events - 1) / events / span_s if span_s > 0 else None


def together_rate(samples: Sequence[Sample]) -> float | None:
    """Tokens a second of all streams while all of them decode: from the last first event to the first last event.

    Each event counts its request's mean of tokens; between events the count is interpolated, because streams that
    began together have their events in step and whole counts would be one short. Where the streams hardly overlap
    (short answers, waiting for admission) the time from the first to the last event of all counts instead. None when
    no stream has two events.
    """
    first = [sample.token_times_s[0] for sample in samples]
    last = [sample.token_times_s[-1] for sample in samples]
    begin, end = max(first), min(last)
    longest = max(end_s - begin_s for begin_s, end_s in zip(first, last, strict=True))
    if longest <= 0:
        return None
    if end - begin < MIN_OVERLAP * longest:
        begin, end = min(first), max(last)
    tokens = sum(
        (_events_until(sample.token_times_s, end) - _events_until(sample.token_times_s, begin))
        * sample.completion_tokens
        / len(sample.token_times_s)
        for sample in samples
    )
    return tokens / (end - begin)


def _events_until(times_s: Sequence[float], at_s: float) -> float:
    """How many events lie up to `at_s`, with the fraction of the way to the next one."""
    count = bisect.bisect_right(times_s, at_s)
    if count in (0, len(times_s)) or times_s[count] == times_s[count - 1]:
        return float(count)
    return count + (at_s - times_s[count - 1]) / (times_s[count] - times_s[count - 1])


def decode_round(samples: Sequence[Sample]) -> dict[str, float]:
    """Figures of one round of equal requests, errors left out. Empty when nothing succeeded."""
    good = [sample for sample in samples if not sample.error and sample.token_times_s]
    if not good:
        return {}
    first_turn = [sample for sample in good if sample.index == 0]
    wall_s = max(sample.end_s for sample in good) - min(sample.start_s for sample in good)
    output = sum(sample.completion_tokens for sample in good)
    gaps = [gap for sample in good for gap in gaps_s(sample)]
    rates = [rate for sample in good if (rate := stream_rate(sample)) is not None]
    together = together_rate(first_turn)
    figures = {
        "ttft_p50_ms": quantile((ttft_s(sample) for sample in good), 0.5) * 1e3,
        "ttft_p95_ms": quantile((ttft_s(sample) for sample in good), 0.95) * 1e3,
        "e2e_p50_ms": quantile((sample.end_s - sample.start_s for sample in good), 0.5) * 1e3,
        "output_tok_s": output / wall_s,
        "requests_s": len(good) / wall_s,
        "tokens_per_event": output / sum(len(sample.token_times_s) for sample in good),
    }
    if gaps:
        figures["gap_p50_ms"] = quantile(gaps, 0.5) * 1e3
        figures["gap_p99_ms"] = quantile(gaps, 0.99) * 1e3
    if rates:
        figures["stream_tok_s"] = quantile(rates, 0.5)
        figures["stream_p5_tok_s"] = quantile(rates, 0.05)
        figures["token_p50_ms"] = 1e3 / quantile(rates, 0.5)
    if together is not None:
        figures["decode_tok_s"] = together
    return figures


def prefill_round(samples: Sequence[Sample]) -> dict[str, float]:
    """Prompt tokens a second until the first token, over all streams of one round."""
    good = [sample for sample in samples if not sample.error and sample.token_times_s]
    if not good:
        return {}
    span_s = max(sample.token_times_s[0] for sample in good) - min(sample.start_s for sample in good)
    return {
        "prefill_tok_s": sum(sample.prompt_tokens for sample in good) / span_s,
        "ttft_p50_ms": quantile((ttft_s(sample) for sample in good), 0.5) * 1e3,
    }


def summarise(rounds: Sequence[Mapping[str, float]]) -> tuple[Figure, ...]:
    """Median, lowest and highest of each quantity over the rounds that have it."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    summary = []
    for name in names:
        values = [figures[name] for figures in rounds if name in figures]
        summary.append(
            Figure(
                name=name,
                unit=UNITS[name],
                median=statistics.median(values),
                low=min(values),
                high=max(values),
                rounds=len(values),
            )
        )
    return tuple(summary)
