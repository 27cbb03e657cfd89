"""Small checkpoints in the true shard and Engram format, for tests and benchmarks."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram.hashing import Layout

TRUE_CONFIG = {
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_vocab_size": 16_000_000,
    "engram_compressed_vocab_size": 99_092,
    "engram_pad_token_id": 2,
}


def config_of(layout: Layout, vocab_size: int) -> dict[str, Any]:
    """config.json of a layout that was built with this engram_vocab_size."""
    return {
        "engram_layer_ids": list(layout.layer_ids),
        "engram_num_embeddings": list(layout.table_rows),
        "engram_max_ngram_size": layout.max_ngram_size,
        "engram_n_heads": layout.heads,
        "engram_head_dim": layout.head_dim,
        "engram_vocab_size": vocab_size,
        "engram_compressed_vocab_size": 64,
        "engram_pad_token_id": 2,
        "num_attention_heads": 8,
        "o_groups": 4,
    }


def random_rows(rows: int, width: int, seed: int) -> NDArray[np.uint8]:
    """uint8[rows, width]."""
    return np.random.default_rng(seed).integers(0, 256, (rows, width), dtype=np.uint8)


def shard_header(tensors: Sequence[tuple[str, str, tuple[int, int]]], pad_to: int = 8) -> bytes:
    """Length and JSON of a safetensors header; tensors are laid out in the given order."""
    header: dict[str, Any] = {}
    at = 0
    for name, dtype, shape in tensors:
        size = shape[0] * shape[1]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % pad_to)
    return struct.pack("<Q", len(text)) + text


def write_checkpoint(
    directory: Path,
    layout: Layout,
    vocab_size: int,
    *,
    apart: bool = False,
    scale_first: bool = False,
    pad_to: int = 8,
) -> dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Writes config, index and shards of random rows; returns {layer: (weight, scale)}.

    apart: weight and scale of a layer in different shards. pad_to: alignment of the data, to try odd offsets.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tables, weight_map = {}, {}
    for number, (layer, rows) in enumerate(zip(layout.layer_ids, layout.table_rows, strict=True)):
        weight, scale = random_rows(rows, 256, 2 * number + 1), random_rows(rows, 8, 2 * number + 2)
        tables[layer] = (weight, scale)
        parts = [
            (f"layers.{layer}.engram.embed.weight", "F8_E4M3", weight),
            (f"layers.{layer}.engram.embed.scale", "F8_E8M0", scale),
        ]
        if scale_first:
            parts.reverse()
        files = [[part] for part in parts] if apart else [parts]
        for piece, content in enumerate(files):
            name = f"model-{number:05d}-{piece}.safetensors"
            with (directory / name).open("wb") as file:
                file.write(shard_header([(key, dtype, data.shape) for key, dtype, data in content], pad_to))
                for key, _, data in content:
                    weight_map[key] = name
                    file.write(data.tobytes())
    (directory / "config.json").write_text(json.dumps(config_of(layout, vocab_size)))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tables


def write_sparse_checkpoint(directory: Path) -> None:
    """The true tables, 189 GiB in name: headers are written, the data are holes."""
    directory.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, (layer, rows) in enumerate(zip((1, 14), TRUE_CONFIG["engram_num_embeddings"], strict=True)):
        name = f"model-{47 + number:05d}-of-00048.safetensors"
        tensors = [
            (f"layers.{layer}.engram.embed.weight", "F8_E4M3", (rows, 256)),
            (f"layers.{layer}.engram.embed.scale", "F8_E8M0", (rows, 8)),
        ]
        header = shard_header(tensors)
        with (directory / name).open("wb") as file:
            file.write(header)
            file.truncate(len(header) + rows * 264)
        weight_map.update({key: name for key, _, _ in tensors})
    (directory / "config.json").write_text(json.dumps(TRUE_CONFIG))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
