"""CRC32C (Castagnoli, reflected polynomial 0x82F63B78: RFC 3720 appendix B.4) in numpy.

The native library has the same function with the processor's own instruction; this is the reference and the
path of machines without a compiler. A CRC is linear over GF(2), so the checksum of a fixed-length block is
the XOR of one table entry per byte position: one gather for a whole batch of pages instead of a loop over
bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78
_ALL_ONES = np.uint32(0xFFFFFFFF)
_CHUNK_BLOCKS = 256  # 256 blocks × 4 KiB × 4 B per entry = 4 MiB of intermediate memory

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


@cache
def _byte_table() -> U32:
    value: U32 = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        value = (value >> np.uint32(1)) ^ (value & np.uint32(1)) * np.uint32(POLYNOMIAL)
    return value


@cache
def _position_table(length: int) -> U32:
    """uint32[length, 256]: what byte b at position p adds to the register after `length` bytes."""
    table = _byte_table()
    out = np.empty((length, 256), dtype=np.uint32)
    out[length - 1] = table
    for position in range(length - 2, -1, -1):
        later = out[position + 1]
        out[position] = (later >> 8) ^ table[later & 0xFF]
    return out


def extend(register: int, data: bytes) -> int:
    """Feeds `data` into a raw register (no inversion at either end); for short headers and identities."""
    table = _byte_table()
    for byte in data:
        register = (register >> 8) ^ int(table[(register ^ byte) & 0xFF])
    return register


def of_bytes(data: bytes) -> int:
    """CRC32C of one byte string."""
    if not data:
        return 0
    start = np.full(1, 0xFFFFFFFF, dtype=np.uint32)
    return int(of_blocks(np.frombuffer(data, dtype=np.uint8)[None, :], start)[0])


def of_blocks(blocks: U8, registers: U32) -> U32:
    """CRC32C of each row of `blocks`, continued from raw registers.

    blocks: uint8[n, length], length ≥ 4; registers: uint32[n], the state before the block (all ones for a
    fresh checksum). Returns uint32[n], final inversion applied.
    """
    count, length = blocks.shape
    if length < 4:
        return np.array(
            [
                extend(int(register), block.tobytes()) ^ 0xFFFFFFFF
                for register, block in zip(registers, blocks, strict=True)
            ],
            dtype=np.uint32,
        )
    table = _position_table(length)
    positions = np.arange(length)
    out = np.empty(count, dtype=np.uint32)
    for first in range(0, count, _CHUNK_BLOCKS):
        part = blocks[first : first + _CHUNK_BLOCKS]
        start = registers[first : first + _CHUNK_BLOCKS].astype("<u4")
        # The register enters a CRC as if XORed into the first four bytes.
        head = part[:, :4] ^ start.view(np.uint8).reshape(-1, 4)
        value = np.bitwise_xor.reduce(table[positions[4:], part[:, 4:]], axis=1)
        value ^= np.bitwise_xor.reduce(table[positions[:4], head], axis=1)
        out[first : first + _CHUNK_BLOCKS] = value ^ _ALL_ONES
    return out


def registers_after_numbers(register: int, numbers: NDArray[Any]) -> U32:
    """The raw registers after feeding each number as a little-endian u64 into `register`: uint32[n]."""
    data = np.ascontiguousarray(numbers, dtype="<u8").view(np.uint8).reshape(-1, 8)
    start = np.full(len(data), register, dtype=np.uint32)
    return of_blocks(data, start) ^ _ALL_ONES
