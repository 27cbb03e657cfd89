"""Reads the headers of a checkpoint's shards: names, dtypes and shapes, never a weight."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.plan.tensors import DTYPE_BYTES, Tensor

INDEX = "model.safetensors.index.json"
INDEX_LIMIT_BYTES = 256 << 20
HEADER_LIMIT_BYTES = 100_000_000  # the limit of the safetensors library
SHARD_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the index and the headers say. `index_sha256` is of the index file's bytes."""

    index_sha256: str
    total_bytes: int
    shards: tuple[str, ...]
    tensors: tuple[Tensor, ...]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read index and headers. Raises ConfigError naming the file and what is wrong."""
    path = folder / INDEX
    try:
        raw = path.read_bytes() if path.stat().st_size <= INDEX_LIMIT_BYTES else b""
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    index = _object(raw, path)
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(shard, str) for shard in names.values()):
        raise ConfigError([f"{path}: weight_map: expected an object of file names"])
    shards = sorted(set(names.values()))
    if any("/" in shard or shard.startswith(".") for shard in shards) or len(shards) > SHARD_LIMIT:
        raise ConfigError([f"{path}: weight_map: not plain file names, or more than {SHARD_LIMIT} of them"])
    tensors: list[Tensor] = []
    for shard in shards:
        tensors += read_header(folder / shard)
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    held = sum(tensor.bytes for tensor in tensors)
    return Checkpoint(
        hashlib.sha256(raw).hexdigest(),
        int(total) if isinstance(total, (int, float)) else held,
        tuple(shards),
        tuple(tensors),
    )


def read_header(path: Path) -> list[Tensor]:
    """The tensors of one shard. Raises ConfigError when it is damaged, truncated or no safetensors file."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 0 < length <= HEADER_LIMIT_BYTES:
                raise ConfigError([f"{path}: no safetensors header (its length field says {length})"])
            raw = file.read(length)
            size = path.stat().st_size
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    header = _object(raw, path)
    found = [_tensor(path, name, entry) for name, entry in header.items() if name != "__metadata__"]
    expected = 8 + length + sum(tensor.bytes for tensor in found)
    if size != expected:
        raise ConfigError([f"{path}: {size} B, its header describes {expected} B: truncated or damaged"])
    return found


def _tensor(path: Path, name: str, entry: Any) -> Tensor:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    dtype = entry.get("dtype") if isinstance(entry, dict) else None
    sound = isinstance(shape, list) and all(isinstance(size, int) and size >= 0 for size in shape)
    if not sound or not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ConfigError([f"{path}: {name}: no shape and dtype that safetensors has"])
    return Tensor(name, dtype, tuple(shape or ()))


def _object(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: not JSON: {error}"]) from error
    if not isinstance(value, dict):
        raise ConfigError([f"{path}: expected an object"])
    return value
