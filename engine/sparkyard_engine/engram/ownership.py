"""Which rank owns which rows: three rules, each a partition of the table.

Source of the rules: whole columns and row fractions are what serving engines do today; with columns ordered
by n-gram size, contiguous columns give one rank all 2-grams (few distinct rows) and another all 4-grams
(many), so every step waits for the latter. `balanced` deals the columns out in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram.errors import ConfigError, OwnershipError

I64 = NDArray[np.int64]
Range = tuple[int, int]


class Ownership(StrEnum):
    """How the rows of a table are dealt out to the ranks."""

    CONTIGUOUS = "contiguous"
    ROWS = "rows"
    BALANCED = "balanced"


def columns_of(rule: Ownership, columns: int, tp: int, rank: int) -> tuple[int, ...] | None:
    """The hash columns a rank owns whole, ascending; None where the rule cuts through columns."""
    check_rank(tp, rank)
    match rule:
        case Ownership.CONTIGUOUS:
            share = -(-columns // tp)
            return tuple(range(min(rank * share, columns), min((rank + 1) * share, columns)))
        case Ownership.BALANCED:
            return tuple(range(rank, columns, tp))
        case Ownership.ROWS:
            return None
    assert_never(rule)


def check_rank(tp: int, rank: int) -> None:
    """Raises ConfigError unless 0 ≤ rank < tp."""
    if tp < 1 or not 0 <= rank < tp:
        raise ConfigError(f"rank {rank} of {tp}: a rank is 0 … tp − 1, and tp is at least 1")


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of one table that one rank owns: ascending, disjoint, non-touching ranges of global row ids.

    A row's local number is its place when the ranges are laid end to end.
    """

    ranges: tuple[Range, ...]

    def __post_init__(self) -> None:
        last = -1
        for start, end in self.ranges:
            if start <= last or end <= start:
                raise ConfigError(f"ranges must ascend without touching: {list(self.ranges)}")
            last = end

    @property
    def rows(self) -> int:
        """How many rows."""
        return sum(end - start for start, end in self.ranges)

    def _find(self, ids: I64) -> tuple[I64, NDArray[np.bool_]]:
        if not self.ranges:
            return np.zeros(ids.shape, dtype=np.int64), np.zeros(ids.shape, dtype=np.bool_)
        starts = np.asarray([start for start, _ in self.ranges], dtype=np.int64)
        ends = np.asarray([end for _, end in self.ranges], dtype=np.int64)
        bases = np.concatenate([[0], np.cumsum(ends - starts)[:-1]])
        which = np.maximum(np.searchsorted(starts, ids, side="right") - 1, 0)
        owned = (ids >= starts[which]) & (ids < ends[which])
        return ids - starts[which] + bases[which], owned

    def owned(self, ids: I64) -> NDArray[np.bool_]:
        """bool, shape of `ids`: whether this slice holds each global row id."""
        return self._find(ids)[1]

    def local(self, ids: I64) -> I64:
        """Local numbers, shape of `ids`. Raises OwnershipError, naming the first id outside the slice."""
        local, owned = self._find(ids)
        if not owned.all():
            row = int(ids[~owned].reshape(-1)[0])
            raise OwnershipError(row, f"row {row} is not in this slice ({describe(self.ranges)})")
        return local

    def spans(self, first: int, count: int) -> list[Range]:
        """The global ranges that local rows [first, first + count) come from, in order."""
        out: list[Range] = []
        base = 0
        for start, end in self.ranges:
            low, high = max(first, base), min(first + count, base + end - start)
            if low < high:
                out.append((start + low - base, start + high - base))
            base += end - start
        return out


def describe(ranges: Sequence[Range]) -> str:
    """`[a, b) [c, d) …`, shortened."""
    shown = " ".join(f"[{start}, {end})" for start, end in ranges[:4])
    return shown + (f" and {len(ranges) - 4} more" if len(ranges) > 4 else "") if ranges else "no rows"


def slice_of(rule: Ownership, bounds: Sequence[int], tp: int, rank: int) -> Slice:
    """The slice of one rank. bounds: columns + 1 prefix sums (`Layout.bounds`)."""
    check_rank(tp, rank)
    columns = columns_of(rule, len(bounds) - 1, tp, rank)
    if columns is None:
        start, end = bounds[-1] * rank // tp, bounds[-1] * (rank + 1) // tp
        return Slice(((start, end),) if end > start else ())
    merged: list[Range] = []
    for column in columns:
        start, end = bounds[column], bounds[column + 1]
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return Slice(tuple(merged))


def slices(rule: Ownership, bounds: Sequence[int], tp: int) -> tuple[Slice, ...]:
    """The slices of all ranks. Asserts that each row has exactly one owner."""
    out = tuple(slice_of(rule, bounds, tp, rank) for rank in range(tp))
    at = 0
    for start, end in sorted(span for part in out for span in part.ranges):
        if start != at:
            raise AssertionError(f"{rule}: rows [{min(at, start)}, {max(at, start)}) have no or two owners")
        at = end
    if at != bounds[-1]:
        raise AssertionError(f"{rule}: rows [{at}, {bounds[-1]}) have no owner")
    return out
