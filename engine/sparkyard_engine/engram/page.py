"""Packed Engram store, format v1: the data page, 15 rows and a seal that proves whose page it is."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram import crc32c
from sparkyard_engine.engram.errors import Reject
from sparkyard_engine.engram.format import CRC_OFFSET, PAYLOAD_BYTES, ROW_BYTES, ROWS_PER_PAGE
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]

_TRAILER = struct.Struct("<32sIIQ")  # store id, layer, 0, page number; at PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class PageSeal:
    """Writes and checks the last 136 bytes of the data pages of one layer file.

    The checksum is CRC32C over store id (32 B) ‖ layer (u32) ‖ 0 (u32) ‖ page number (u64) ‖ the page's first
    4092 bytes: a sound page in the wrong place, or of another store, does not pass.
    """

    store_id: bytes
    layer: int

    @property
    def register(self) -> int:
        """The raw CRC register after store id and layer: the same for all pages of the file."""
        return crc32c.extend(0xFFFFFFFF, self.store_id + struct.pack("<II", self.layer, 0))

    def checksums(self, pages: U8, numbers: I64) -> U32:
        """pages: uint8[n, 4096], numbers: int64[n] → uint32[n]."""
        return crc32c.of_blocks(pages[:, :CRC_OFFSET], crc32c.registers_after_numbers(self.register, numbers))

    def apply(self, pages: U8, numbers: I64) -> None:
        """Fills trailer and checksum of pages whose payload is in place; the rest of the tail is zero."""
        trailer = np.frombuffer(_TRAILER.pack(self.store_id, self.layer, 0, 0), dtype=np.uint8)
        end = PAYLOAD_BYTES + _TRAILER.size
        pages[:, PAYLOAD_BYTES:end] = trailer
        pages[:, end - 8 : end] = np.ascontiguousarray(numbers, dtype="<u8").view(np.uint8).reshape(-1, 8)
        pages[:, end:CRC_OFFSET] = 0
        pages[:, CRC_OFFSET:] = self.checksums(pages, numbers).astype("<u4").view(np.uint8).reshape(-1, 4)

    def valid(self, pages: U8, numbers: I64) -> NDArray[np.bool_]:
        """bool[n]."""
        stored = np.ascontiguousarray(pages[:, CRC_OFFSET:]).view("<u4").reshape(-1)
        same: NDArray[np.bool_] = stored == self.checksums(pages, numbers)
        return same

    def diagnose(self, page: U8, number: int) -> tuple[Reject, str]:
        """Why a page that is not valid is not: the reason and words for it."""
        if not page.any():
            return Reject.HOLE, f"page {number} is all zero: never written"
        store, layer, _, stated = _TRAILER.unpack_from(page.tobytes(), PAYLOAD_BYTES)
        own = PageSeal(store, layer)
        if own.valid(page[None, :], np.asarray([stated]))[0]:
            if store != self.store_id:
                return (
                    Reject.FOREIGN_PAGE,
                    f"page {number} is a sound page of another store ({store.hex()[:12]}…)",
                )
            return (
                Reject.MISPLACED_PAGE,
                f"page {number} holds page {stated} of layer {layer}, expected layer {self.layer}",
            )
        return Reject.PAGE_CORRUPT, f"page {number} has a wrong checksum: bit rot or a torn write"


def row_slots(pages: U8) -> U8:
    """A view of pages uint8[p, 4096] as rows uint8[p, 15, 264]."""
    return pages[:, :PAYLOAD_BYTES].reshape(len(pages), ROWS_PER_PAGE, ROW_BYTES)


def fill_payload(pages: U8, weight: U8, scale: U8) -> None:
    """Interleaves rows into pages. pages: uint8[p, 4096]; weight: uint8[n, 256]; scale: uint8[n, 8]; n ≤ 15
    p.
    """
    count = len(weight)
    whole = count // ROWS_PER_PAGE
    slots = row_slots(pages)
    slots[:whole, :, :WEIGHT_BYTES] = weight[: whole * ROWS_PER_PAGE].reshape(
        whole, ROWS_PER_PAGE, WEIGHT_BYTES
    )
    slots[:whole, :, WEIGHT_BYTES:] = scale[: whole * ROWS_PER_PAGE].reshape(
        whole, ROWS_PER_PAGE, SCALE_BYTES
    )
    rest = count - whole * ROWS_PER_PAGE
    if rest:
        slots[whole, :rest, :WEIGHT_BYTES] = weight[whole * ROWS_PER_PAGE :]
        slots[whole, :rest, WEIGHT_BYTES:] = scale[whole * ROWS_PER_PAGE :]
        slots[whole, rest:] = 0


def extent_digest(checksums: U32) -> str:
    """hex SHA-256 over an extent's page checksums (u32, little endian) in order; each covers all other
    bytes of its page.
    """
    return hashlib.sha256(checksums.astype("<u4").tobytes()).hexdigest()
