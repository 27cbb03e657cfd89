"""Compares random packed rows with the checkpoint they came from."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sparkyard_engine.engram.direct import ALIGN_BYTES, aligned
from sparkyard_engine.engram.errors import MismatchError
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.manifest import Manifest
from sparkyard_engine.engram.packing import open_layer, read_rows
from sparkyard_engine.engram.reader import Reader


def verify_sample(checkpoint: Path, found: Manifest, store: Path, count: int) -> int:
    """Checks up to `count` random rows of each layer; returns how many were checked. Raises StoreError or
    MismatchError.

    The rows differ from call to call: a repeated check covers more and more of the store.
    """
    random = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    scratch = aligned(WEIGHT_BYTES + 2 * ALIGN_BYTES)
    checked = 0
    for entry in found.layers:
        header = entry.header
        if not header.rows:
            continue
        local = np.sort(random.choice(header.rows, size=min(count, header.rows), replace=False))
        ids = np.asarray([header.slice.spans(int(row), 1)[0][0] for row in local], dtype=np.int64)
        weight = np.empty((len(ids), WEIGHT_BYTES), dtype=np.uint8)
        scale = np.empty((len(ids), SCALE_BYTES), dtype=np.uint8)
        with Reader(store, header.layer) as reader:
            reader.read_rows(ids, weight, scale)
        with open_layer(checkpoint, header, store / entry.file, writing=False) as files:
            for number, row in enumerate(ids.tolist()):
                span = [(row, row + 1)]
                same = (
                    read_rows(files.weight, header.weight, WEIGHT_BYTES, span, scratch)[0] == weight[number]
                ).all()
                same &= (
                    read_rows(files.scale, header.scale, SCALE_BYTES, span, scratch)[0] == scale[number]
                ).all()
                if not same:
                    raise MismatchError(
                        f"{store / entry.file}: row {row} is sound but differs from its source: pack again"
                    )
        checked += len(ids)
    return checked
