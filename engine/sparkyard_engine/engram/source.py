"""Finds the Engram tables in a safetensors checkpoint by reading headers only: no offset is ever assumed."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sparkyard_engine.engram.errors import SourceError
from sparkyard_engine.engram.format import TensorPlace
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES, Layout
from sparkyard_engine.files import is_plain

INDEX_NAME: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = 256 << 20
MAX_HEADER_BYTES: Final = 100_000_000  # the safetensors format's own limit
WEIGHT_DTYPE: Final = "F8_E4M3"
SCALE_DTYPE: Final = "F8_E8M0"


@dataclass(frozen=True, slots=True)
class Table:
    """The two tensors of one layer."""

    layer: int
    rows: int
    weight: TensorPlace
    scale: TensorPlace


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What pack needs to know of a checkpoint."""

    directory: Path
    layout: Layout
    index_sha256: str
    tables: tuple[Table, ...]


def open_checkpoint(directory: Path) -> Checkpoint:
    """Reads config.json, the index and two shard headers. Raises SourceError or ConfigError."""
    config = _json_object(directory / "config.json", MAX_INDEX_BYTES)[0]
    index, raw = _json_object(directory / INDEX_NAME, MAX_INDEX_BYTES)
    layout = Layout.from_config(config)
    if layout.head_dim != WEIGHT_BYTES:
        raise SourceError(
            f"{directory}: engram_head_dim {layout.head_dim}; the packed format holds {WEIGHT_BYTES}"
        )
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping):
        raise SourceError(f"{directory / INDEX_NAME}: no weight_map")
    headers: dict[str, tuple[Mapping[str, Any], int, int]] = {}
    tables = []
    for layer, rows in zip(layout.layer_ids, layout.table_rows, strict=True):
        places = []
        for part, dtype, width in (
            ("weight", WEIGHT_DTYPE, WEIGHT_BYTES),
            ("scale", SCALE_DTYPE, SCALE_BYTES),
        ):
            name = _full_name(weight_map, f"layers.{layer}.engram.embed.{part}", directory)
            file = weight_map[name]
            if not is_plain(file):
                raise SourceError(
                    f"{directory / INDEX_NAME}: {name}: {str(file)[:80]!r} is not a plain file name"
                )
            if file not in headers:
                headers[file] = _shard_header(directory / file)
            places.append(_place(name, file, headers[file], dtype, (rows, width), directory))
        tables.append(Table(layer, rows, places[0], places[1]))
    return Checkpoint(directory, layout, hashlib.sha256(raw).hexdigest(), tuple(tables))


def _full_name(weight_map: Mapping[str, Any], suffix: str, directory: Path) -> str:
    if suffix in weight_map:
        return suffix
    found = [name for name in weight_map if name.endswith("." + suffix)]
    if len(found) != 1:
        raise SourceError(
            f"{directory / INDEX_NAME}: {len(found)} tensors end in {suffix!r}, one was expected"
        )
    return found[0]


def _json_object(path: Path, limit: int) -> tuple[Mapping[str, Any], bytes]:
    try:
        if path.stat().st_size > limit:
            raise SourceError(f"{path}: larger than {limit} bytes")
        raw = path.read_bytes()
        value = json.loads(raw)
    except OSError as wrong:
        raise SourceError(f"{path}: {wrong.strerror}: is this the checkpoint's folder?") from None
    except (ValueError, RecursionError) as wrong:
        raise SourceError(f"{path}: not JSON: {wrong}") from None
    if not isinstance(value, Mapping):
        raise SourceError(f"{path}: not a JSON object")
    return value, raw


def _shard_header(path: Path) -> tuple[Mapping[str, Any], int, int]:
    """(header, absolute offset of the data, size of the file)."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length_raw = file.read(8)
            if len(length_raw) < 8:
                raise SourceError(f"{path}: {size} bytes are no safetensors file")
            (length,) = struct.unpack("<Q", length_raw)
            if length > min(MAX_HEADER_BYTES, size - 8):
                raise SourceError(
                    f"{path}: its header claims {length} bytes; truncated or not a safetensors file"
                )
            value = json.loads(file.read(length))
    except OSError as wrong:
        raise SourceError(f"{path}: {wrong.strerror}: the index names this shard: fetch it") from None
    except (ValueError, RecursionError) as wrong:
        raise SourceError(f"{path}: its header is not JSON: {wrong}") from None
    if not isinstance(value, Mapping):
        raise SourceError(f"{path}: its header is not a JSON object")
    return value, 8 + length, size


def _place(
    name: str,
    file: str,
    header: tuple[Mapping[str, Any], int, int],
    dtype: str,
    shape: tuple[int, int],
    directory: Path,
) -> TensorPlace:
    entries, data, size = header
    where = f"{directory / file}: {name}"
    try:
        entry = entries[name]
        found = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except KeyError:
        raise SourceError(f"{where}: not in this shard, though the index says so") from None
    except (TypeError, ValueError):
        raise SourceError(f"{where}: a malformed header entry") from None
    if found != (dtype, shape):
        raise SourceError(f"{where}: {found[0]} {list(found[1])}, expected {dtype} {list(shape)}")
    if not 0 <= begin <= end or end - begin != shape[0] * shape[1]:
        raise SourceError(f"{where}: data_offsets [{begin}, {end}) do not hold {shape[0] * shape[1]} bytes")
    if data + end > size:
        raise SourceError(
            f"{where}: ends at byte {data + end}, the file has {size}: the download is incomplete"
        )
    return TensorPlace(name, file, dtype, shape, data + begin, end - begin)
