"""The slice store's manifest, `sparkyard/slice-store/v1`: what the store is, and where each tensor lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkyard_engine.files import read_json
from sparkyard_engine.padding import Fill
from sparkyard_engine.rankspec import identity_of
from sparkyard_engine.slices.cut import Cut, Piece

SCHEMA = "sparkyard/slice-store/v1"
FILE = "manifest.json"
FORMAT = 1  # raise it whenever the same inputs give other bytes
LIMIT_BYTES = 256 << 20


class SliceError(Exception):
    """The store is not the one that was asked for, or is damaged; the text names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a store is made from. Its id can be computed before a byte is read."""

    revision: str
    index_sha256: str
    tp: int
    rank: int
    padding: Mapping[str, int]
    """Padded `num_attention_heads` and `o_groups`; empty without padding."""

    def value(self) -> dict[str, Any]:
        """As JSON; the store's id is its identity."""
        return {
            "format": FORMAT,
            "revision": self.revision,
            "index_sha256": self.index_sha256,
            "tp": self.tp,
            "rank": self.rank,
            "padding": dict(self.padding),
        }

    @property
    def store_id(self) -> str:
        """Lower-case hex SHA-256 of the canonical JSON."""
        return identity_of(self.value())


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its slice in `file` at `offset`, how it is laid into the full shape, and its CRC-32."""

    name: str
    dtype: str
    cut: Cut
    file: str
    offset: int
    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished store."""

    identity: Mapping[str, Any]
    entries: tuple[Entry, ...]
    files: Mapping[str, int]
    """File name → bytes."""

    @property
    def bytes(self) -> int:
        """All slices together."""
        return sum(self.files.values())

    def value(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": SCHEMA,
            "id": identity_of(self.identity),
            "identity": dict(self.identity),
            "files": dict(self.files),
            "tensors": [_entry_value(entry) for entry in self.entries],
        }


def load(store: Path, wanted: Identity) -> Manifest:
    """The manifest of a store that is complete and the wanted one. Raises SliceError naming what differs."""
    raw = read_json(store / FILE, LIMIT_BYTES)
    if raw is None:
        raise SliceError(f"{store}: no finished slice store; `pack` writes it")
    if raw.get("schema") != SCHEMA:
        raise SliceError(f"{store}: schema: expected {SCHEMA!r}, found {raw.get('schema')!r}")
    found, asked = raw.get("identity"), wanted.value()
    if found != asked:
        differ = [
            f"{key}: wanted {asked[key]!r}, found {(found or {}).get(key)!r}"
            for key in asked
            if (found or {}).get(key) != asked[key]
        ]
        raise SliceError(
            f"{store}: another rank's or another checkpoint's slices ({'; '.join(differ)}); pack again"
        )
    try:
        entries = tuple(_entry(value) for value in raw["tensors"])
        files = {str(name): int(size) for name, size in raw["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SliceError(f"{store / FILE}: damaged ({error!r}); pack again") from error
    for name, size in files.items():
        try:
            actual = (store / name).stat().st_size
        except OSError:
            actual = -1
        if actual != size:
            raise SliceError(f"{store / name}: {actual} B, the manifest says {size}; pack again")
    return Manifest(asked, entries, files)


def _entry_value(entry: Entry) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": entry.name,
        "dtype": entry.dtype,
        "shape": list(entry.cut.shape),
        "file": entry.file,
        "offset": entry.offset,
        "bytes": entry.bytes,
        "crc32": entry.crc32,
    }
    if entry.cut.axis is not None:
        value |= {
            "axis": entry.cut.axis,
            "pieces": [[piece.source, piece.length, piece.target] for piece in entry.cut.pieces],
            "filled": list(entry.cut.filled),
            "fill": entry.cut.fill.value if entry.cut.fill else None,
        }
    return value


def _entry(value: Mapping[str, Any]) -> Entry:
    first, last = value.get("filled", (0, 0))
    fill = value.get("fill")
    made = Cut(
        tuple(int(size) for size in value["shape"]),
        value.get("axis"),
        tuple(Piece(*piece) for piece in value.get("pieces", ())),
        (int(first), int(last)),
        Fill(fill) if fill else None,
    )
    return Entry(
        str(value["name"]),
        str(value["dtype"]),
        made,
        str(value["file"]),
        int(value["offset"]),
        int(value["bytes"]),
        int(value["crc32"]),
    )
