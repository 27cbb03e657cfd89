"""Packed tables of a small checkpoint for ranks of several sizes of a group, and the comparison of bits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from sparkyard_engine.engram import pack


def pack_ranks(base: Path, ranks: Iterable[tuple[int, int]]) -> None:
    """Pack ``base/checkpoint`` for each (tp, rank) into ``base/tpTP-RANK``."""
    for tp, rank in ranks:
        words = ["--checkpoint", base / "checkpoint", "--revision", "r", "--tp", tp, "--rank", rank]
        assert pack.main([*map(str, words), "--output", str(base / f"tp{tp}-{rank}")]) == 0


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal shapes, and equal as bits, all NaNs being one."""
    nan = torch.isnan(theirs)
    return ours.shape == theirs.shape and bool(
        (torch.isnan(ours) == nan).all()
        and (ours[~nan].view(torch.int16) == theirs[~nan].view(torch.int16)).all()
    )
