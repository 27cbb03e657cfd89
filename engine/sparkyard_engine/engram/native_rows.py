"""The native reader behind the same methods as its Python twin (`rows.Rows`)."""

from __future__ import annotations

import ctypes
import os
from typing import Final

import numpy as np

from sparkyard_engine.engram.counters import LATENCY_BOUNDS_US, Counters
from sparkyard_engine.engram.direct import DirectFile
from sparkyard_engine.engram.errors import EngramError, OwnershipError, Reject
from sparkyard_engine.engram.format import PAGE_BYTES, Header
from sparkyard_engine.engram.native import Library, address
from sparkyard_engine.engram.ownership import describe
from sparkyard_engine.engram.page import PageSeal
from sparkyard_engine.engram.rows import I32, I64, U8, Shape, failure

DEPTH: Final = (
    1024  # reads in flight with io_uring: a decode batch (576 rows) goes out at once; 4 MiB of buffers
)
THREADS: Final = 48  # blocking readers where io_uring is denied; half of what the published design starts
MAX_BATCH_ROWS: Final = (1 << 31) - 1  # the index of a row in a batch is an int32
CODE_OK, CODE_NOT_OWNED, CODE_IO, CODE_SHORT, CODE_BAD_PAGE = range(5)  # reader.hpp: Code


class Fault(ctypes.Structure):
    """reader.hpp: Fault."""

    _fields_ = (
        ("code", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("row", ctypes.c_int64),
        ("page", ctypes.c_int64),
    )


class Totals(ctypes.Structure):
    """reader.hpp: Totals."""

    _fields_ = (
        ("batches", ctypes.c_uint64),
        ("requested", ctypes.c_uint64),
        ("unique", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("pages", ctypes.c_uint64),
        ("errors", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("latency", ctypes.c_uint64 * (len(LATENCY_BOUNDS_US) + 1)),
    )


class NativeRows:
    """See `rows.Rows`. ring: io_uring, else the pool of threads. Raises OSError where the kernel denies the
    ring.
    """

    def __init__(
        self, header: Header, file: DirectFile, library: Library, *, ring: bool, cache_bytes: int = 0
    ) -> None:
        self.backend = "io_uring" if ring else "pool"
        self._header, self._file, self._lib = header, file, library.lib
        self._seal = PageSeal(bytes.fromhex(header.identity.store_id), header.layer)
        ranges = np.asarray(header.ranges, dtype=np.int64).reshape(-1, 2)
        error = ctypes.c_int32()
        self.handle: int | None = self._lib.sy_reader_open(
            file.descriptor,
            address(ranges),
            len(ranges),
            self._seal.store_id,
            header.layer,
            cache_bytes,
            DEPTH if ring else 0,
            THREADS,
            ctypes.addressof(error),
        )
        if self.handle is None:
            raise OSError(error.value, os.strerror(error.value))

    def close(self) -> None:
        """See `Rows`."""
        if self.handle is not None:
            self._lib.sy_reader_close(self.handle)
            self.handle = None

    def counters(self) -> Counters:
        """See `Rows`."""
        totals = Totals()
        if self.handle is not None:
            self._lib.sy_reader_totals(self.handle, ctypes.addressof(totals))
        return Counters(
            batches=totals.batches,
            rows_requested=totals.requested,
            rows_unique=totals.unique,
            cache_hits=totals.hits,
            pages_read=totals.pages,
            errors=totals.errors,
            read_s=totals.nanoseconds / 1e9,
            latency=tuple(totals.latency),
        )

    def read(self, ids: I64, shape: Shape, foreign_ok: bool, weight: U8, scale: U8, index: I32 | None) -> int:
        """See `Rows`."""
        if self.handle is None:
            raise EngramError(f"{self._file.path}: this reader is closed")
        if len(ids) > MAX_BATCH_ROWS:
            raise EngramError(f"{len(ids)} rows in one batch; {MAX_BATCH_ROWS} are the most")
        distinct = ctypes.c_uint64()
        code = self._lib.sy_reader_read(
            self.handle,
            address(ids),
            len(ids),
            int(shape),
            int(foreign_ok),
            address(weight),
            address(scale),
            None if index is None else address(index),
            ctypes.addressof(distinct),
        )
        if code != CODE_OK:
            raise self.fault()
        return distinct.value

    def fault(self) -> EngramError:
        """The last batch's failure as the exception that the Python twin would have raised."""
        fault, page = Fault(), np.empty(PAGE_BYTES, dtype=np.uint8)
        self._lib.sy_reader_fault(self.handle, ctypes.addressof(fault), address(page))
        match fault.code:
            case c if c == CODE_NOT_OWNED:
                shown = describe(self._header.ranges)
                return OwnershipError(fault.row, f"row {fault.row} is not in this slice ({shown})")
            case c if c == CODE_BAD_PAGE:
                reason, words = self._seal.diagnose(page, fault.page)
            case c if c == CODE_SHORT:
                reason, words = Reject.TRUNCATED, f"page {fault.page}: the file ends inside it"
            case _:
                reason, words = Reject.READ_FAILED, f"page {fault.page}: {os.strerror(fault.error)}"
        return failure(self._header, self._file, fault.row, fault.page, reason, words)
