"""What a reader has done since it was opened."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from sparkyard_engine.engram.format import PAGE_BYTES

# Upper bounds of the batch latency histogram in microseconds; the last bucket has none.
LATENCY_BOUNDS_US: Final = (
    50,
    100,
    200,
    500,
    1000,
    2000,
    5000,
    10_000,
    20_000,
    50_000,
    100_000,
    500_000,
    2_000_000,
)


def _no_latencies() -> tuple[int, ...]:
    return (0,) * (len(LATENCY_BOUNDS_US) + 1)


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over all batches. rows_requested: ids of this slice, repeats counted. latency: batches per bucket of
    LATENCY_BOUNDS_US.
    """

    batches: int = 0
    rows_requested: int = 0
    rows_unique: int = 0
    cache_hits: int = 0
    pages_read: int = 0
    errors: int = 0
    read_s: float = 0.0
    latency: tuple[int, ...] = field(default_factory=_no_latencies)

    @property
    def bytes_read(self) -> int:
        """Bytes of pages."""
        return self.pages_read * PAGE_BYTES

    def plus(self, *, requested: int, unique: int, pages: int, took_s: float) -> Counters:
        """One more batch, without cache hits."""
        bucket = sum(took_s * 1e6 > bound for bound in LATENCY_BOUNDS_US)
        return replace(
            self,
            batches=self.batches + 1,
            rows_requested=self.rows_requested + requested,
            rows_unique=self.rows_unique + unique,
            pages_read=self.pages_read + pages,
            read_s=self.read_s + took_s,
            latency=tuple(count + (place == bucket) for place, count in enumerate(self.latency)),
        )

    def failed(self) -> Counters:
        """One more error."""
        return replace(self, errors=self.errors + 1)

    def as_json(self) -> dict[str, Any]:
        """For the rank status file."""
        return {
            "batches": self.batches,
            "rows_requested": self.rows_requested,
            "rows_unique": self.rows_unique,
            "cache_hits": self.cache_hits,
            "pages_read": self.pages_read,
            "bytes_read": self.bytes_read,
            "errors": self.errors,
            "read_s": round(self.read_s, 6),
            "latency_bounds_us": list(LATENCY_BOUNDS_US),
            "latency": list(self.latency),
        }
