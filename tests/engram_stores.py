"""A small checkpoint, its packed store, and ways to read and damage it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparkyard_engine.engram import native, pack
from sparkyard_engine.engram.format import PAGE_BYTES
from sparkyard_engine.engram.hashing import Layout
from sparkyard_engine.engram.reader import Backend, Reader
from tests.engram_checkpoint import write_checkpoint

VOCAB = 61
BACKENDS = (
    (Backend.PYTHON, Backend.IO_URING, Backend.POOL) if native.library() is not None else (Backend.PYTHON,)
)
LAYOUT = Layout.build(layer_ids=(1, 14), max_ngram_size=4, heads=2, vocab_size=VOCAB)


def run_pack(
    checkpoint: Path, output: Path, *more: str, tp: int = 3, rank: int = 1, rule: str = "balanced"
) -> int:
    base = ["--checkpoint", str(checkpoint), "--revision", "r1", "--tp", str(tp), "--rank", str(rank)]
    return pack.main([*base, "--ownership", rule, "--output", str(output), *more])


def read_all(store: Path, layer: int, tables) -> None:
    for backend in BACKENDS:
        read_with(store, layer, tables, backend)


def read_with(store: Path, layer: int, tables, backend: Backend) -> None:
    with Reader(store, layer, backend=backend) as reader:
        ids = np.concatenate([np.arange(0), *(np.arange(a, b) for a, b in reader.slice.ranges)])
        weight, scale = np.empty((len(ids), 256), np.uint8), np.empty((len(ids), 8), np.uint8)
        reader.read_rows(ids, weight, scale)
        assert (weight == tables[layer][0][ids]).all()
        assert (scale == tables[layer][1][ids]).all()


def damage(store: Path, offset: int, data: bytes) -> None:
    with (store / "layer-1.rows").open("r+b") as file:
        file.seek(offset)
        file.write(data)


def page_of(store: Path, layer: int, number: int) -> bytes:
    return (store / f"layer-{layer}.rows").read_bytes()[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]


def make_store(base: Path):
    """(checkpoint, store of rank 1 of 3, {layer: (weight, scale)})."""
    tables = write_checkpoint(base / "checkpoint", LAYOUT, VOCAB)
    assert run_pack(base / "checkpoint", base / "store") == 0
    return base / "checkpoint", base / "store", tables
