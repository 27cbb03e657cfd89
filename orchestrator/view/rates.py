"""Rates and quantiles from counters that may restart. Pure."""

from __future__ import annotations

from collections.abc import Sequence

HISTORY = 120
"""Points a sparkline keeps: four minutes at the default pace."""


def rate(before: float | None, after: float | None, seconds: float) -> float | None:
    """Growth per second; None when a reading is missing, time stood still, or the counter restarted."""
    if before is None or after is None or seconds <= 0 or after < before:
        return None
    return (after - before) / seconds


def appended(history: tuple[float, ...], value: float | None) -> tuple[float, ...]:
    """The last `HISTORY` values; a missing one leaves no point."""
    return history if value is None else (*history[-(HISTORY - 1) :], value)


def grown(before: Sequence[float], after: Sequence[float]) -> tuple[float, ...] | None:
    """Per-bucket growth; None when the buckets are others or a counter restarted."""
    if len(before) != len(after):
        return None
    found = tuple(late - early for early, late in zip(before, after, strict=True))
    return None if any(value < 0 for value in found) else found


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Upper bound of the bucket that holds the quantile, interpolated within it as Prometheus does.

    `bounds` are finite upper bounds; `counts` (not cumulative) has one entry more, for what is above the last. None
    without observations. Above the last bound the answer is the last bound.
    """
    total = sum(counts)
    if total <= 0 or len(counts) != len(bounds) + 1:
        return None
    wanted, seen = share * total, 0.0
    for index, (bound, count) in enumerate(zip(bounds, counts, strict=False)):
        if count > 0 and seen + count >= wanted:
            lower = bounds[index - 1] if index else 0.0
            return lower + (bound - lower) * (wanted - seen) / count
        seen += count
    return bounds[-1] if bounds else None


def median(values: Sequence[float]) -> float | None:
    """The middle value, the lower one of two."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else None
