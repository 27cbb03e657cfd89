"""Reads proven rows of one layer from a packed store."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram import manifest as manifests
from sparkyard_engine.engram import native
from sparkyard_engine.engram.counters import Counters
from sparkyard_engine.engram.direct import DirectFile, aligned, open_direct
from sparkyard_engine.engram.errors import ConfigError, Reject, StoreError
from sparkyard_engine.engram.format import PAGE_BYTES, Header, Identity, check_header
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.native_rows import NativeRows
from sparkyard_engine.engram.rows import I32, I64, U8, PythonRows, Rows, Shape


class Backend(StrEnum):
    """How pages are read. AUTO takes the first of io_uring, pool, python that this machine has."""

    AUTO = "auto"
    IO_URING = "io_uring"
    POOL = "pool"
    PYTHON = "python"


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


def choose(header: Header, file: DirectFile, backend: Backend, cache_bytes: int) -> tuple[Rows, str]:
    """The reader and, in words, why it is this one. Raises ConfigError when the one asked for is not to be
    had.
    """
    refused: list[str] = []
    if backend is not Backend.PYTHON:
        library = native.library()
        if library is None:
            refused.append(f"native: {native.missing()}")
        for ring, name in ((True, Backend.IO_URING), (False, Backend.POOL)):
            if library is None or backend not in (Backend.AUTO, name):
                continue
            try:
                rows = NativeRows(header, file, library, ring=ring, cache_bytes=cache_bytes)
            except OSError as wrong:
                refused.append(f"{name}: {wrong.strerror}")
                continue
            return rows, "; ".join([str(name), *refused])
        if backend is not Backend.AUTO:
            raise ConfigError(f"backend {backend} is not available here: {'; '.join(refused)}")
    return PythonRows(header, file), "; ".join(["python", *refused])


class Reader:
    """Rows of one layer of one store.

    expected: whose rows the caller needs; another store is refused at once. cache_bytes: bound of the row
    cache (native readers only; 0: none). One batch at a time. No row is handed out that was not read from the
    page that its id names, with a checksum that proves store, layer, page and bytes; anything else raises.

    backend: the one in use; backend_note: the same with the reasons against the better ones, for the status
    file.
    """

    def __init__(
        self,
        store: Path | str,
        layer: int,
        *,
        expected: Identity | None = None,
        backend: Backend | str = Backend.AUTO,
        cache_bytes: int = 0,
    ) -> None:
        """Raises StoreError or ConfigError."""
        wanted = Backend(backend)
        self.header, self._file = open_layer_file(Path(store), layer, expected)
        self.slice = self.header.slice
        try:
            self.rows, self.backend_note = choose(self.header, self._file, wanted, cache_bytes)
        except BaseException:
            self._file.close()
            raise
        self.backend = self.rows.backend

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of this reader."""
        self.rows.close()
        self._file.close()

    @property
    def counters(self) -> Counters:
        """Sums over all batches so far."""
        return self.rows.counters()

    def read_rows(self, ids: I64, out_weight: U8, out_scale: U8) -> None:
        """Global row ids int64[n], any order, repeats allowed → out_weight uint8[n, 256], out_scale uint8[n,
        8].

        Raises OwnershipError or ReadError; the outputs are then undefined and must not be used.
        """
        flat = _check(ids, out_weight, out_scale)
        self.rows.read(flat, Shape.PER_ID, False, out_weight, out_scale, None)

    def read_owned(self, ids: I64, out_weight: U8, out_scale: U8) -> NDArray[np.bool_]:
        """As `read_rows`, but ids of other ranks give rows that decode to +0; returns bool[n], true where
        owned.
        """
        flat = _check(ids, out_weight, out_scale)
        self.rows.read(flat, Shape.PER_ID, True, out_weight, out_scale, None)
        return self.slice.owned(flat)

    def read_distinct(self, ids: I64, out_weight: U8, out_scale: U8, out_index: I32) -> int:
        """Each distinct owned row once, ascending, in the first rows of the outputs; returns how many.

        out_index int32[n]: the place of each id's row, −1 for ids of other ranks. Raises ReadError.
        """
        flat = _check(ids, out_weight, out_scale)
        if out_index.shape != flat.shape or out_index.dtype != np.int32:
            raise ConfigError(f"out_index must be int32[{len(flat)}]")
        return self.rows.read(flat, Shape.DISTINCT, True, out_weight, out_scale, out_index)


def _check(ids: I64, weight: U8, scale: U8) -> I64:
    """The ids as a flat contiguous array. Raises ConfigError for outputs that a native reader would
    overrun.
    """
    flat = np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)
    for array, width in ((weight, WEIGHT_BYTES), (scale, SCALE_BYTES)):
        if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != width or len(array) < len(flat):
            raise ConfigError(
                f"outputs must be uint8[≥ {len(flat)}, {width}], not {array.dtype}{array.shape}"
            )
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ConfigError("outputs must be contiguous and writable")
    return flat
