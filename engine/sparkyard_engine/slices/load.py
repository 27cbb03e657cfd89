"""Yields the tensors of a slice store in their full, padded shapes, of which only this rank's part is filled."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sparkyard_engine.slices.manifest import Entry, Manifest, SliceError

READERS = 4  # reading and checking run ahead of SGLang's copies
AHEAD = 8  # tensors in flight: at V4.1's largest, 1.3 GB each only in address space, a third of it in memory


def stream(store: Path, manifest: Manifest, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """(checkpoint name, tensor) for each wanted name, in the store's order.

    The rest of a tensor is never written and so takes no memory: SGLang narrows it away. Each slice is checked against
    its CRC-32; the page cache is dropped behind the load. Raises SliceError naming the tensor.
    """
    files = {name: os.open(store / name, os.O_RDONLY | os.O_CLOEXEC) for name in manifest.files}
    entries = [entry for entry in manifest.entries if wanted(entry.name)]
    flying: deque[tuple[Entry, Future[Any]]] = deque()
    try:
        with ThreadPoolExecutor(READERS, thread_name_prefix="slices") as pool:
            for entry in entries:
                flying.append((entry, pool.submit(_read, store, files[entry.file], entry)))
                if len(flying) >= AHEAD:
                    yield _next(flying, files)
            while flying:
                yield _next(flying, files)
    finally:
        for fd in files.values():
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _next(flying: deque[tuple[Entry, Future[Any]]], files: dict[str, int]) -> tuple[str, Any]:
    entry, future = flying.popleft()
    tensor = future.result()
    os.posix_fadvise(files[entry.file], entry.offset, entry.bytes, os.POSIX_FADV_DONTNEED)
    return entry.name, tensor


def _read(store: Path, fd: int, entry: Entry) -> Any:
    import torch

    dtype = getattr(torch, entry.dtype)
    raw = torch.empty(entry.bytes, dtype=torch.uint8)
    view = memoryview(raw.numpy())
    done = 0
    while done < entry.bytes:
        size = os.preadv(fd, [view[done:]], entry.offset + done)
        if size == 0:
            raise SliceError(f"{store / entry.file}: {entry.name}: the file ends early; pack again")
        done += size
    if zlib.crc32(view) != entry.crc32:
        raise SliceError(f"{store / entry.file}: {entry.name}: the checksum differs; pack again")
    taken = raw.view(dtype).reshape(entry.cut.stored_shape)
    return taken if entry.cut.axis is None else _laid(taken, entry)


def _laid(taken: Any, entry: Entry) -> Any:
    """The slice in its place in the full shape."""
    import torch

    made = entry.cut
    axis = made.axis or 0
    stored = torch.uint8 if taken.element_size() == 1 else taken.dtype
    full = torch.empty(made.shape, dtype=stored)
    if made.fill is not None:
        first, last = made.filled
        full.narrow(axis, first, last - first).fill_(made.fill.number)
    at = 0
    for piece in made.pieces:
        part = taken.view(stored).narrow(axis, at, piece.length)
        full.narrow(axis, piece.target, piece.length).copy_(part)
        at += piece.length
    return full.view(taken.dtype)
