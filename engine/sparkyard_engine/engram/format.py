"""Packed Engram store, format v1: sizes, identity and the header page; page.py has the data pages.

docs/engram-store.md shows every byte as tables. A layer file is one header page and then data pages of 4 KiB. A data
page holds 15 rows of 264 bytes, so that one row is always one aligned read, and ends with who it is (store, layer,
page number) and a CRC32C over that and all the rest.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram import crc32c
from sparkyard_engine.engram.errors import ConfigError, Reject, StoreError
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.ownership import Ownership, Range, Slice

VERSION: Final = 1
MAGIC: Final = b"SPKYENG1"
PAGE_BYTES: Final = (
    4096  # the least unit of a direct read on every NVMe drive in use (512 and 4096 byte sectors)
)
ROW_BYTES: Final = WEIGHT_BYTES + SCALE_BYTES
ROWS_PER_PAGE: Final = 15  # 15 × 264 = 3960; a 16th row would straddle
PAYLOAD_BYTES: Final = ROWS_PER_PAGE * ROW_BYTES
EXTENT_PAGES: Final = 2048  # 8 MiB: the unit of writing, of resuming and of the manifest's digests
CRC_OFFSET: Final = PAGE_BYTES - 4
MAX_REVISION_BYTES: Final = 64

_HEADER = struct.Struct("<8sIIIIIIII QQQ 32s32s64s QQQQ 32s II")
_RANGE = struct.Struct("<QQ")
MAX_RANGES: Final = (CRC_OFFSET - _HEADER.size) // _RANGE.size
_OWNERSHIP_CODES: Final = {Ownership.CONTIGUOUS: 1, Ownership.ROWS: 2, Ownership.BALANCED: 3}

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]


def canonical(value: Any) -> bytes:
    """Canonical JSON, as docs/formats.md defines it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest_of(value: Any) -> str:
    """An identity: hex SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose rows a store holds; all of it is known before a byte is read."""

    revision: str
    index_sha256: str
    tp: int
    rank: int
    ownership: Ownership

    @property
    def store_id(self) -> str:
        """64 hex digits."""
        return digest_of(
            {
                "format": VERSION,
                "revision": self.revision,
                "index_sha256": self.index_sha256,
                "tp": self.tp,
                "rank": self.rank,
                "ownership": str(self.ownership),
            }
        )


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor's bytes lie: `offset` counts from the start of `file`."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, int]
    offset: int
    size: int  # bytes

    def as_json(self) -> dict[str, Any]:
        """As in the manifest."""
        return {
            "name": self.name,
            "file": self.file,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "offset": self.offset,
            "bytes": self.size,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TensorPlace:
        """Raises KeyError, TypeError or ValueError on anything else."""
        rows, width = (int(n) for n in value["shape"])
        return cls(
            str(value["name"]),
            str(value["file"]),
            str(value["dtype"]),
            (rows, width),
            int(value["offset"]),
            int(value["bytes"]),
        )


@dataclass(frozen=True, slots=True)
class Header:
    """Page 0 of a layer file. table_rows: rows of the whole table, over all ranks."""

    identity: Identity
    layer: int
    table_rows: int
    ranges: tuple[Range, ...]
    weight: TensorPlace
    scale: TensorPlace

    @property
    def slice(self) -> Slice:
        """The rows of this file."""
        return Slice(self.ranges)

    @property
    def rows(self) -> int:
        """Rows in this file."""
        return sum(end - start for start, end in self.ranges)

    @property
    def pages(self) -> int:
        """Data pages; they are numbered from 1."""
        return pages_for(self.rows)

    @property
    def file_bytes(self) -> int:
        """Exact size of the file."""
        return file_bytes_for(self.rows)

    @property
    def source_digest(self) -> str:
        """Pins names, files, offsets and sizes of the two source tensors."""
        return digest_of({"weight": self.weight.as_json(), "scale": self.scale.as_json()})


def pages_for(rows: int) -> int:
    """Data pages for so many rows."""
    return -(-rows // ROWS_PER_PAGE)


def file_bytes_for(rows: int) -> int:
    """Size of a layer file with so many rows."""
    return (1 + pages_for(rows)) * PAGE_BYTES


def encode_header(header: Header) -> bytes:
    """4096 bytes."""
    revision = header.identity.revision.encode()
    if not revision or len(revision) > MAX_REVISION_BYTES or b"\0" in revision:
        raise ConfigError(
            f"a revision is 1 to {MAX_REVISION_BYTES} bytes without NUL, not {header.identity.revision!r}"
        )
    if len(header.ranges) > MAX_RANGES:
        raise ConfigError(f"{len(header.ranges)} row ranges; the header holds {MAX_RANGES}")
    page = bytearray(PAGE_BYTES)
    _HEADER.pack_into(
        page,
        0,
        MAGIC,
        VERSION,
        PAGE_BYTES,
        ROW_BYTES,
        ROWS_PER_PAGE,
        header.layer,
        header.identity.tp,
        header.identity.rank,
        _OWNERSHIP_CODES[header.identity.ownership],
        header.table_rows,
        header.rows,
        header.pages,
        bytes.fromhex(header.identity.store_id),
        bytes.fromhex(header.identity.index_sha256),
        revision,
        header.weight.offset,
        header.weight.size,
        header.scale.offset,
        header.scale.size,
        bytes.fromhex(header.source_digest),
        EXTENT_PAGES,
        len(header.ranges),
    )
    for number, (start, end) in enumerate(header.ranges):
        _RANGE.pack_into(page, _HEADER.size + number * _RANGE.size, start, end)
    struct.pack_into("<I", page, CRC_OFFSET, crc32c.of_bytes(bytes(page[:CRC_OFFSET])))
    return bytes(page)


def check_header(page: bytes, expected: Header, where: str) -> None:
    """Compares page 0 with what it must be. Raises StoreError with the reason that fits best.

    All fields of the header follow from the manifest, so the right header is one exact page; the comparison
    of single fields only finds the words for the difference.
    """
    if page == encode_header(expected):
        return
    if len(page) < PAGE_BYTES:
        raise StoreError(Reject.TRUNCATED, f"{where}: {len(page)} of {PAGE_BYTES} header bytes")
    if not any(page):
        raise StoreError(Reject.HOLE, f"{where}: the header page is all zero")
    if page[: len(MAGIC)] != MAGIC:
        raise StoreError(Reject.NOT_A_STORE, f"{where}: no packed Engram file (magic {page[: len(MAGIC)]!r})")
    if struct.unpack_from("<I", page, CRC_OFFSET)[0] != crc32c.of_bytes(page[:CRC_OFFSET]):
        raise StoreError(
            Reject.HEADER_CORRUPT, f"{where}: the header's checksum is wrong: pack this layer again"
        )
    fields = _HEADER.unpack_from(page)
    wanted = _HEADER.unpack_from(encode_header(expected))
    for place, reason, what in (
        (1, Reject.OTHER_VERSION, "format version"),
        (13, Reject.OTHER_MODEL, "checkpoint index digest"),
        (14, Reject.OTHER_REVISION, "revision"),
        (5, Reject.OTHER_LAYER, "layer"),
        (6, Reject.OTHER_TP, "tp"),
        (7, Reject.OTHER_RANK, "rank"),
        (8, Reject.OTHER_OWNERSHIP, "ownership"),
    ):
        if fields[place] != wanted[place]:
            shown, due = (_text(value) for value in (fields[place], wanted[place]))
            raise StoreError(reason, f"{where}: {what} {shown}, expected {due}")
    raise StoreError(
        Reject.HEADER_CORRUPT, f"{where}: a sound header, but not the one that the manifest describes"
    )


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        bare = value.rstrip(b"\0")
        return (
            bare.decode() if bare.isascii() and bare.decode("ascii").isprintable() and bare else value.hex()
        )
    return str(value)
