"""The largest number of streams within a service level. A pure search: it says which number to try next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.bench.record import Capacity, PromptKind, Row, Slo


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a number of streams holds; `breaks` names the worst miss."""

    holds: bool
    breaks: str = ""


def judge(row: Row, slo: Slo) -> Verdict:
    """Holds when the row's medians keep both limits and no request failed."""
    if row.errors:
        return Verdict(False, f"requests fail: {row.errors} of {row.requests}")
    ttft, rate = row.figure("ttft_p95_ms"), row.figure("stream_p5_tok_s")
    if ttft is None or rate is None:
        return Verdict(False, "too few tokens came to measure a rate")
    late = ttft.median / slo.ttft_ms
    slow = slo.stream_tok_s / rate.median
    if late <= 1.0 and slow <= 1.0:
        return Verdict(True)
    if late >= slow:
        return Verdict(False, f"time to first token: {ttft.median:.0f} ms, allowed {slo.ttft_ms:.0f} ms")
    return Verdict(
        False, f"tokens a second of a stream: {rate.median:.1f}, wanted {slo.stream_tok_s:.1f} or more"
    )


def next_streams(tried: Mapping[int, bool], limit: int) -> int | None:
    """The number to try next: doubling until one fails, then halving the gap. None when the answer is known.

    A number above one that failed is never tried, and one below one that held is taken to hold.
    """
    good = max((streams for streams, holds in tried.items() if holds), default=0)
    bad = min((streams for streams, holds in tried.items() if not holds and streams > good), default=None)
    if any(not holds and streams <= good for streams, holds in tried.items()):
        # not monotonic: a smaller number failed while a larger one held; the smallest failure decides
        bad = min(streams for streams, holds in tried.items() if not holds)
        good = max((streams for streams, holds in tried.items() if holds and streams < bad), default=0)
    if bad is None:
        return None if good >= limit else min(limit, max(1, good * 2))
    return None if bad - good <= 1 else (good + bad) // 2


def conclude(
    verdicts: Mapping[int, Verdict], *, slo: Slo, kind: PromptKind, limit: int, interrupted: bool
) -> Capacity:
    """The answer from everything that was tried."""
    failed = sorted(streams for streams, verdict in verdicts.items() if not verdict.holds)
    held = [streams for streams, verdict in verdicts.items() if verdict.holds]
    best = max((streams for streams in held if not failed or streams < failed[0]), default=0)
    bounded: Literal["slo", "limit", "interrupted"] = (
        "interrupted" if interrupted else "limit" if best >= limit else "slo"
    )
    return Capacity(
        slo=slo,
        kind=kind,
        streams=best,
        bounded_by=bounded,
        breaks_first=f"at {failed[0]} streams: {verdicts[failed[0]].breaks}" if failed else "",
        tried=tuple((streams, verdicts[streams].holds) for streams in sorted(verdicts)),
    )
