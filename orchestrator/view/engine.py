"""Requests, as rank 0's metrics page tells them: rates and quantiles over the last minute. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model.sample import EngineNow
from orchestrator.view.rates import appended, grown, quantile, rate

WINDOW_S = 60.0
"""Quantiles are over the requests of the last minute; without any, over the last that there were."""
WINDOW_MAX = 64


@dataclass(frozen=True, slots=True)
class EngineView:
    """Rank 0's view of the requests; a number is None while it is not known."""

    now: EngineNow
    at_unix_s: float
    window: tuple[tuple[float, EngineNow], ...] = ()
    generated_per_s: float | None = None
    prompt_per_s: float | None = None
    requests_per_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    history: tuple[float, ...] = ()

    def gauge(self, name: str) -> float | None:
        """A gauge of the page, by its name without the prefix."""
        return self.now.gauges.get(name)

    @property
    def kv_use(self) -> float | None:
        """Share of the fullest token pool that is in use."""
        found = [
            value
            for name in ("token_usage", "full_token_usage", "swa_token_usage")
            if (value := self.gauge(name)) is not None
        ]
        return max(found) if found else None


def engine_after(
    before: EngineView | None, now: EngineNow, monotonic_s: float, at_unix_s: float
) -> EngineView:
    """The view after one more page. A page with an error keeps nothing that could be taken for a value."""
    if now.error or before is None or before.now.error or not before.window:
        return EngineView(now, at_unix_s, () if now.error else ((monotonic_s, now),))
    last_s, last = before.window[-1]
    seconds = monotonic_s - last_s

    def per_s(name: str) -> float | None:
        return rate(last.counters.get(name), now.counters.get(name), seconds)

    generated = per_s("generation_tokens_total")
    kept = tuple(entry for entry in before.window if monotonic_s - entry[0] <= WINDOW_S) or before.window[-1:]
    if generated is None:
        kept = ()  # the engine was started again: its counters began anew
    window = (*kept, (monotonic_s, now))[-WINDOW_MAX:]
    oldest = window[0][1]
    counts = _separate(now, oldest) if oldest is not now else None
    p50 = quantile(now.ttft_bounds_s, counts, 0.5) if counts else None
    p95 = quantile(now.ttft_bounds_s, counts, 0.95) if counts else None
    return EngineView(
        now,
        at_unix_s,
        window,
        generated,
        per_s("prompt_tokens_total"),
        per_s("num_requests_total"),
        before.ttft_p50_s if p50 is None and kept else p50,
        before.ttft_p95_s if p95 is None and kept else p95,
        appended(before.history, generated),
    )


def _separate(now: EngineNow, oldest: EngineNow) -> tuple[float, ...] | None:
    """Requests in each bucket since `oldest`; the page's buckets are cumulative."""
    early = oldest.ttft or (0.0,) * len(now.ttft)
    found = grown(early, now.ttft)
    if not found:
        return None
    return tuple(late - early for early, late in zip((0.0, *found[:-1]), found, strict=True))
