"""The Python twin of the native reader: one page after the other. The reference in tests, and the path of
machines without a compiler.
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram.counters import Counters
from sparkyard_engine.engram.direct import DirectFile, aligned
from sparkyard_engine.engram.errors import EngramError, ReadError, Reject
from sparkyard_engine.engram.format import PAGE_BYTES, ROWS_PER_PAGE, Header
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.page import PageSeal, row_slots

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

UNIT_SCALE: Final = 127  # e8m0 127 is 1.0: with zero weights the row decodes to +0
PASS_PAGES: Final = 4096  # pages read and checked at a time: 16 MiB of buffer


class Shape(IntEnum):
    """How rows leave: one per id, or each distinct row once and an index per id."""

    PER_ID = 0
    DISTINCT = 1


class Rows(Protocol):
    """What both readers do."""

    backend: str

    def read(self, ids: I64, shape: Shape, foreign_ok: bool, weight: U8, scale: U8, index: I32 | None) -> int:
        """One batch; returns the number of distinct rows. Raises OwnershipError or ReadError."""

    def counters(self) -> Counters:
        """Sums since the opening."""

    def close(self) -> None:
        """Gives threads and buffers back; the file stays open."""


def failure(header: Header, file: DirectFile, row: int, page: int, reason: Reject, words: str) -> ReadError:
    """A ReadError in the words that both readers use."""
    return ReadError(reason, f"{file.path}: row {row} of layer {header.layer}: {words}", row=row, page=page)


class PythonRows:
    """See `Rows`."""

    def __init__(self, header: Header, file: DirectFile) -> None:
        self.backend = "python"
        self._header, self._file, self._slice = header, file, header.slice
        self._seal = PageSeal(bytes.fromhex(header.identity.store_id), header.layer)
        self._pages = aligned(min(PASS_PAGES, max(header.pages, 1)) * PAGE_BYTES).reshape(-1, PAGE_BYTES)
        self._counters = Counters()

    def counters(self) -> Counters:
        """See `Rows`."""
        return self._counters

    def close(self) -> None:
        """Nothing to give back."""

    def read(self, ids: I64, shape: Shape, foreign_ok: bool, weight: U8, scale: U8, index: I32 | None) -> int:
        """See `Rows`."""
        start = time.perf_counter()
        owned = self._slice.owned(ids) if foreign_ok else np.ones(len(ids), dtype=np.bool_)
        try:
            local, back = np.unique(self._slice.local(ids[owned]), return_inverse=True)
            rows, pages = self._read_unique(local)
        except EngramError:
            self._counters = self._counters.failed()
            raise
        if shape is Shape.DISTINCT:
            weight[: len(local)], scale[: len(local)] = rows[:, :WEIGHT_BYTES], rows[:, WEIGHT_BYTES:]
            if index is not None:
                index[~owned] = -1
                index[owned] = back
        else:
            weight[owned], scale[owned] = rows[back, :WEIGHT_BYTES], rows[back, WEIGHT_BYTES:]
            weight[~owned], scale[~owned] = 0, UNIT_SCALE
        self._counters = self._counters.plus(
            requested=int(owned.sum()), unique=len(local), pages=pages, took_s=time.perf_counter() - start
        )
        return len(local)

    def _read_unique(self, local: I64) -> tuple[U8, int]:
        rows = np.empty((len(local), WEIGHT_BYTES + SCALE_BYTES), dtype=np.uint8)
        pages, page_of = np.unique(local // ROWS_PER_PAGE + 1, return_inverse=True)
        for first in range(0, len(pages), len(self._pages)):
            part = pages[first : first + len(self._pages)]
            low, high = np.searchsorted(page_of, [first, first + len(part)])
            self._read_pages(part, local)
            slots = row_slots(self._pages)
            rows[low:high] = slots[page_of[low:high] - first, local[low:high] % ROWS_PER_PAGE]
        return rows, len(pages)

    def _read_pages(self, numbers: I64, local: I64) -> None:
        for place, number in enumerate(numbers.tolist()):
            try:
                got = self._file.read_into(self._pages[place], number * PAGE_BYTES)
            except OSError as wrong:
                raise self._failure(number, local, Reject.READ_FAILED, str(wrong.strerror)) from None
            if got < PAGE_BYTES:
                words = f"page {number} ends after {got} of {PAGE_BYTES} bytes"
                raise self._failure(number, local, Reject.TRUNCATED, words)
        used = self._pages[: len(numbers)]
        sound = self._seal.valid(used, numbers)
        if not sound.all():
            bad = int(np.flatnonzero(~sound)[0])
            raise self._failure(int(numbers[bad]), local, *self._seal.diagnose(used[bad], int(numbers[bad])))

    def _failure(self, page: int, local: I64, reason: Reject, words: str) -> ReadError:
        first = int(local[np.searchsorted(local, (page - 1) * ROWS_PER_PAGE)])
        return failure(self._header, self._file, self._slice.spans(first, 1)[0][0], page, reason, words)
