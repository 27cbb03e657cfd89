"""Reads proven rows of one layer from a packed store."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram import manifest as manifests
from sparkyard_engine.engram.counters import Counters
from sparkyard_engine.engram.direct import DirectFile, aligned, open_direct
from sparkyard_engine.engram.errors import EngramError, ReadError, Reject, StoreError
from sparkyard_engine.engram.format import (
    PAGE_BYTES,
    ROWS_PER_PAGE,
    Header,
    Identity,
    PageSeal,
    check_header,
    row_slots,
)
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

UNIT_SCALE: Final = 127  # e8m0 127 is 1.0: with zero weights the row decodes to +0
PASS_PAGES: Final = 4096  # pages read and checked at a time by the Python path: 16 MiB of buffer


def open_layer_file(store: Path, layer: int, expected: Identity | None) -> tuple[Header, DirectFile]:
    """Checks manifest, identity, size and header page; the caller closes the file. Raises StoreError."""
    manifest = manifests.load(store)
    if expected is not None:
        manifests.check_identity(manifest.identity, expected, str(store / manifests.FILE_NAME))
    entry = manifest.layer(layer)
    path = store / entry.file
    try:
        file = open_direct(path, os.O_RDONLY)
    except FileNotFoundError:
        raise StoreError(Reject.MISSING, f"{path}: the manifest names it: pack again") from None
    except OSError as wrong:
        raise StoreError(Reject.READ_FAILED, f"{path}: {wrong.strerror}") from None
    try:
        check_layer_file(entry.header, file)
    except BaseException:
        file.close()
        raise
    return entry.header, file


def check_layer_file(header: Header, file: DirectFile) -> None:
    """Compares header page and size with the manifest's. Raises StoreError."""
    page = aligned(PAGE_BYTES)
    try:
        got = file.read_into(page, 0)
        size = os.fstat(file.descriptor).st_size
    except OSError as wrong:
        raise StoreError(Reject.READ_FAILED, f"{file.path}: {wrong.strerror}") from None
    check_header(page[:got].tobytes(), header, str(file.path))
    if size != header.file_bytes:
        raise StoreError(
            Reject.TRUNCATED, f"{file.path}: {size} bytes, the manifest says {header.file_bytes}"
        )


class Reader:
    """Rows of one layer of one store.

    expected: whose rows the caller needs; another store is refused at once. Not safe for two threads at a
    time. No row is handed out that was not read from the page that its id names, with a checksum that proves
    store, layer, page and bytes; anything else raises.
    """

    def __init__(self, store: Path | str, layer: int, *, expected: Identity | None = None) -> None:
        """Raises StoreError."""
        self.header, self._file = open_layer_file(Path(store), layer, expected)
        self.slice = self.header.slice
        self._seal = PageSeal(bytes.fromhex(self.header.identity.store_id), layer)
        self._pages = aligned(min(PASS_PAGES, max(self.header.pages, 1)) * PAGE_BYTES).reshape(-1, PAGE_BYTES)
        self.counters = Counters()
        self.backend = "python"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of this reader."""
        self._file.close()

    def read_rows(self, ids: I64, out_weight: U8, out_scale: U8) -> None:
        """Global row ids int64[n], any order, repeats allowed → out_weight uint8[n, 256], out_scale uint8[n,
        8].

        Raises OwnershipError or ReadError; the outputs are then undefined and must not be used.
        """
        start = time.perf_counter()
        try:
            local, back = np.unique(self.slice.local(ids.reshape(-1)), return_inverse=True)
            pages = self._read_unique(local, back, out_weight, out_scale)
        except EngramError:
            self.counters = self.counters.failed()
            raise
        self.counters = self.counters.plus(
            requested=ids.size,
            unique=len(local),
            hits=0,
            pages=pages,
            page_bytes=pages * PAGE_BYTES,
            took_s=time.perf_counter() - start,
        )

    def read_owned(self, ids: I64, out_weight: U8, out_scale: U8) -> NDArray[np.bool_]:
        """As `read_rows`, but ids of other ranks give rows that decode to +0; returns bool[n], true where
        owned.
        """
        flat = ids.reshape(-1)
        owned = self.slice.owned(flat)
        if owned.all():
            self.read_rows(flat, out_weight, out_scale)
            return owned
        mine = flat[owned]
        weight = np.empty((len(mine), WEIGHT_BYTES), dtype=np.uint8)
        scale = np.empty((len(mine), SCALE_BYTES), dtype=np.uint8)
        self.read_rows(mine, weight, scale)
        out_weight[~owned] = 0
        out_scale[~owned] = UNIT_SCALE
        out_weight[owned] = weight
        out_scale[owned] = scale
        return owned

    def _read_unique(self, local: I64, back: NDArray[np.intp], out_weight: U8, out_scale: U8) -> int:
        if not len(local):
            return 0
        pages, page_of = np.unique(local // ROWS_PER_PAGE + 1, return_inverse=True)
        rows = np.empty((len(local), WEIGHT_BYTES + SCALE_BYTES), dtype=np.uint8)
        slots = local % ROWS_PER_PAGE
        for first in range(0, len(pages), len(self._pages)):
            part = pages[first : first + len(self._pages)]
            low, high = np.searchsorted(page_of, [first, first + len(part)])
            self._read_pages(part, local)
            rows[low:high] = row_slots(self._pages)[page_of[low:high] - first, slots[low:high]]
        out_weight[...] = rows[back, :WEIGHT_BYTES]
        out_scale[...] = rows[back, WEIGHT_BYTES:]
        return len(pages)

    def _read_pages(self, numbers: I64, local: I64) -> None:
        """Fills the first pages of the buffer and proves them. Raises ReadError."""
        for place, number in enumerate(numbers.tolist()):
            try:
                got = self._file.read_into(self._pages[place], number * PAGE_BYTES)
            except OSError as wrong:
                raise self._failure(
                    number, local, Reject.READ_FAILED, f"page {number}: {wrong.strerror}"
                ) from None
            if got < PAGE_BYTES:
                raise self._failure(
                    number, local, Reject.TRUNCATED, f"page {number}: {got} of {PAGE_BYTES} bytes"
                )
        used = self._pages[: len(numbers)]
        sound = self._seal.valid(used, numbers)
        if not sound.all():
            bad = int(np.flatnonzero(~sound)[0])
            raise self._failure(int(numbers[bad]), local, *self._seal.diagnose(used[bad], int(numbers[bad])))

    def _failure(self, page: int, local: I64, reason: Reject, words: str) -> ReadError:
        first = int(local[np.searchsorted(local, (page - 1) * ROWS_PER_PAGE)])
        row = self.slice.spans(first, 1)[0][0]
        return ReadError(reason, f"{self._file.path}: row {row}: {words}", row=row, page=page)
