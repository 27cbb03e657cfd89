"""`manifest.json` of a packed store: what it holds, where it came from, and a digest per extent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sparkyard_engine.engram.errors import ConfigError, Reject, StoreError
from sparkyard_engine.engram.format import (
    EXTENT_PAGES,
    VERSION,
    Header,
    Identity,
    TensorPlace,
    canonical,
    digest_of,
)
from sparkyard_engine.engram.ownership import Ownership
from sparkyard_engine.files import sync_folder

SCHEMA: Final = "sparkyard/engram-store/v1"
FILE_NAME: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 64 << 20  # a TP1 store has ~12,800 extents a layer, ~2 MB; more is no manifest


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One layer file. digests: one per extent of 2048 data pages (the last may be shorter)."""

    header: Header
    file: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The store's whole description."""

    identity: Identity
    layers: tuple[LayerEntry, ...]

    def layer(self, number: int) -> LayerEntry:
        """Raises StoreError when the store has no such layer."""
        for entry in self.layers:
            if entry.header.layer == number:
                return entry
        held = [entry.header.layer for entry in self.layers]
        raise StoreError(Reject.OTHER_LAYER, f"layer {number} is not in this store; it holds {held}")


def layer_file_name(layer: int) -> str:
    """Name of a layer's file inside the store's folder."""
    return f"layer-{layer}.rows"


def encode(manifest: Manifest) -> bytes:
    """The exact bytes of the file: canonical JSON with its own digest, and a newline."""
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "format": VERSION,
        "store_id": manifest.identity.store_id,
        "revision": manifest.identity.revision,
        "index_sha256": manifest.identity.index_sha256,
        "tp": manifest.identity.tp,
        "rank": manifest.identity.rank,
        "ownership": str(manifest.identity.ownership),
        "extent_pages": EXTENT_PAGES,
        "layers": [
            {
                "layer": entry.header.layer,
                "file": entry.file,
                "table_rows": entry.header.table_rows,
                "rows": entry.header.rows,
                "bytes": entry.header.file_bytes,
                "ranges": [list(span) for span in entry.header.ranges],
                "weight": entry.header.weight.as_json(),
                "scale": entry.header.scale.as_json(),
                "digests": list(entry.digests),
            }
            for entry in manifest.layers
        ],
    }
    return canonical({**body, "digest": digest_of(body)}) + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """Raises StoreError. Accepts exactly what `encode` writes, so that no changed byte goes unnoticed."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as wrong:
        raise StoreError(Reject.MANIFEST_CORRUPT, f"{where}: no JSON ({wrong}): pack again") from None
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        raise StoreError(Reject.NOT_A_STORE, f"{where}: not a {SCHEMA} document")
    if value.get("format") != VERSION:
        raise StoreError(
            Reject.OTHER_VERSION,
            f"{where}: format {value.get('format')}, this reader knows {VERSION}: "
            "use the sparkyard that packed it, or remove the folder and pack again",
        )
    try:
        manifest = _manifest(value)
        same = encode(manifest) == data
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ConfigError) as wrong:
        raise StoreError(
            Reject.MANIFEST_CORRUPT, f"{where}: unreadable ({type(wrong).__name__}: {wrong}): pack again"
        ) from None
    if not same:
        raise StoreError(
            Reject.MANIFEST_CORRUPT, f"{where}: its bytes are not what its digest says: pack again"
        )
    return manifest


def _manifest(value: Mapping[str, Any]) -> Manifest:
    identity = Identity(
        str(value["revision"]),
        str(value["index_sha256"]),
        int(value["tp"]),
        int(value["rank"]),
        Ownership(value["ownership"]),
    )
    return Manifest(identity, tuple(_entry(identity, layer) for layer in value["layers"]))


def _entry(identity: Identity, value: Mapping[str, Any]) -> LayerEntry:
    ranges = tuple((int(start), int(end)) for start, end in value["ranges"])
    header = Header(
        identity,
        int(value["layer"]),
        int(value["table_rows"]),
        ranges,
        TensorPlace.from_json(value["weight"]),
        TensorPlace.from_json(value["scale"]),
    )
    if "/" in str(value["file"]) or str(value["file"]) in ("", ".", ".."):
        raise ValueError(f"file name {value['file']!r}")
    return LayerEntry(header, str(value["file"]), tuple(str(digest) for digest in value["digests"]))


def load(store: Path) -> Manifest:
    """Raises StoreError."""
    path = store / FILE_NAME
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise StoreError(Reject.MANIFEST_CORRUPT, f"{path}: larger than {MAX_MANIFEST_BYTES} bytes")
        data = path.read_bytes()
    except FileNotFoundError:
        raise StoreError(Reject.MISSING, f"{path}: no packed store here: run pack") from None
    except OSError as wrong:
        raise StoreError(Reject.READ_FAILED, f"{path}: {wrong.strerror}") from None
    return decode(data, str(path))


def check_identity(found: Identity, expected: Identity, where: str) -> None:
    """Raises StoreError with the first difference, in the order in which a person would want to know."""
    for reason, what, have, want in (
        (Reject.OTHER_MODEL, "checkpoint index digest", found.index_sha256, expected.index_sha256),
        (Reject.OTHER_REVISION, "revision", found.revision, expected.revision),
        (Reject.OTHER_TP, "tp", found.tp, expected.tp),
        (Reject.OTHER_RANK, "rank", found.rank, expected.rank),
        (Reject.OTHER_OWNERSHIP, "ownership", found.ownership, expected.ownership),
    ):
        if have != want:
            raise StoreError(reason, f"{where}: {what} {have}, expected {want}: pack for this rank")


def write_whole(path: Path, data: bytes) -> None:
    """Temporary name, fsync, rename, fsync of the folder."""
    partial = path.with_name(path.name + ".tmp")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)
