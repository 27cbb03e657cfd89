"""Which part of a tensor a rank loads. Pure; SGLang later narrows the full-shape tensor to the same part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

from sparkyard_engine.padding import Fill, Placement, Rule

VOCABULARY_QUANTUM = 64  # SGLang pads the vocabulary to a multiple of 64 and of the ranks


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` entries along the axis: from `source` in the checkpoint's tensor to `target` in the padded one."""

    source: int
    length: int
    target: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part of one tensor. `shape` is the padded full shape; axis None: all of it, unpadded.

    `filled` is the range along the axis that is padding's `fill` before the pieces are laid over it.
    """

    shape: tuple[int, ...]
    axis: int | None
    pieces: tuple[Piece, ...]
    filled: tuple[int, int]
    fill: Fill | None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the pieces joined along the axis: what the store holds."""
        if self.axis is None:
            return self.shape
        shape = list(self.shape)
        shape[self.axis] = sum(piece.length for piece in self.pieces)
        return tuple(shape)


def cut(rule: Rule | None, shape: Sequence[int], placement: Placement, rank: int) -> Cut | None:
    """The part of a tensor of `shape` that the rank loads; None when it loads nothing of it.

    A name without a rule, or an axis that the ranks do not divide, is loaded whole: more bytes, never fewer.
    """
    whole = Cut(tuple(shape), None, (), (0, 0), None)
    if rule is None:
        return whole
    if rule.split == "never":
        return None
    if rule.pad_axis is not None and placement.is_padded:
        return _padded(rule, shape, placement, rank)
    if rule.whole_at_load or rule.split == "none":
        return whole
    axis = 1 if rule.split == "columns" else 0
    size = shape[axis]
    if rule.split == "vocabulary":
        quantum = lcm(VOCABULARY_QUANTUM, placement.tp)
        per_rank = -(-size // quantum) * quantum // placement.tp
    elif size % placement.tp:
        return whole
    else:
        per_rank = size // placement.tp
    first, last = min(size, rank * per_rank), min(size, (rank + 1) * per_rank)
    return Cut(tuple(shape), axis, (Piece(first, last - first, first),), (first, last), None)


def _padded(rule: Rule, shape: Sequence[int], placement: Placement, rank: int) -> Cut:
    axis = rule.pad_axis or 0
    unit = shape[axis] // placement.real_groups
    per_rank = len(placement.slots) // placement.tp
    slots = (
        range(len(placement.slots)) if rule.split == "none" else range(rank * per_rank, (rank + 1) * per_rank)
    )
    pieces = [
        Piece(group * unit, unit, slot * unit)
        for slot in slots
        if (group := placement.slots[slot]) is not None
    ]
    padded = list(shape)
    padded[axis] = unit * len(placement.slots)
    return Cut(
        tuple(padded), axis, tuple(_joined(pieces)), (slots[0] * unit, (slots[-1] + 1) * unit), rule.fill
    )


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours in source and target as one piece."""
    joined = pieces[:1]
    for before, piece in pairwise(pieces):
        last = joined[-1]
        if before.source + before.length == piece.source and before.target + before.length == piece.target:
            joined[-1] = Piece(last.source, last.length + piece.length, last.target)
        else:
            joined.append(piece)
    return joined
