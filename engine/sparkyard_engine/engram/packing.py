"""The work of pack and of its verification: extents, many at a time, in a bounded amount of memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram import native
from sparkyard_engine.engram.direct import ALIGN_BYTES, DirectFile, aligned, open_direct
from sparkyard_engine.engram.errors import MismatchError, Reject, SourceError, StoreError
from sparkyard_engine.engram.format import EXTENT_PAGES, PAGE_BYTES, Header, TensorPlace, encode_header
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.page import PageSeal, extent_digest, fill_payload
from sparkyard_engine.engram.plan import EXTENT_ROWS, Extent, StorePlan, extents

WORKERS: Final = 8  # 8 extents in flight keep one NVMe drive busy in both directions; ~17 MiB of buffers each
MAX_WORKERS: Final = 32  # 32 × 17 MiB = 0.53 GiB: the bound of the pack's memory stays under 1 GiB
U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class LayerFiles:
    """Open descriptors of one layer: where its rows come from and go to."""

    header: Header
    seal: PageSeal
    weight: DirectFile
    scale: DirectFile
    output: DirectFile


@dataclass(frozen=True, slots=True)
class Buffers:
    """One worker's memory, used again for every extent."""

    pages: U8  # [EXTENT_PAGES, 4096]
    other: U8  # the same, for comparing
    weight: U8
    scale: U8

    @classmethod
    def new(cls, comparing: bool) -> Buffers:
        """comparing: whether `other` is needed."""
        size = EXTENT_PAGES * PAGE_BYTES
        return cls(
            aligned(size).reshape(EXTENT_PAGES, PAGE_BYTES),
            aligned(size if comparing else 0).reshape(-1, PAGE_BYTES),
            aligned(EXTENT_ROWS * WEIGHT_BYTES + 2 * ALIGN_BYTES),
            aligned(EXTENT_ROWS * SCALE_BYTES + 2 * ALIGN_BYTES),
        )


@contextlib.contextmanager
def open_layer(checkpoint: Path, header: Header, output: Path, *, writing: bool) -> Iterator[LayerFiles]:
    """Opens the shards for reading and the layer file for writing or reading. Raises OSError."""
    with contextlib.ExitStack() as opened:

        def enter(path: Path, flags: int) -> DirectFile:
            file = open_direct(path, flags)
            opened.callback(file.close)
            return file

        yield LayerFiles(
            header,
            PageSeal(bytes.fromhex(header.identity.store_id), header.layer),
            enter(checkpoint / header.weight.file, os.O_RDONLY),
            enter(checkpoint / header.scale.file, os.O_RDONLY),
            enter(output, os.O_RDWR | os.O_CREAT if writing else os.O_RDONLY),
        )


def read_rows(
    file: DirectFile, place: TensorPlace, width: int, spans: Sequence[tuple[int, int]], buffer: U8
) -> U8:
    """The bytes of the global row ranges `spans`, one after the other: uint8[rows, width]. Raises
    SourceError.
    """
    parts = []
    for start, end in spans:
        first, last = place.offset + start * width, place.offset + end * width
        low = first - first % ALIGN_BYTES
        size = -(-(last - low) // ALIGN_BYTES) * ALIGN_BYTES
        got = file.read_into(buffer[:size], low)
        if got < last - low:
            raise SourceError(f"{file.path}: ends at byte {low + got} while {place.name} needs byte {last}")
        part = buffer[first - low : last - low].reshape(end - start, width)
        parts.append(part.copy() if len(spans) > 1 else part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def build_extent(files: LayerFiles, extent: Extent, buffers: Buffers, pages: U8) -> NDArray[np.uint32]:
    """Reads an extent's rows and lays its pages out in `pages`; returns the page checksums
    uint32[extent.pages].
    """
    header = files.header
    spans = header.slice.spans(extent.first_row, extent.rows)
    weight = read_rows(files.weight, header.weight, WEIGHT_BYTES, spans, buffers.weight)
    scale = read_rows(files.scale, header.scale, SCALE_BYTES, spans, buffers.scale)
    used = pages[: extent.pages]
    library = native.library()
    if library is not None:
        library.lay_out(used, weight, scale, files.seal, extent.first_page)
    else:
        fill_payload(used, weight, scale)
        files.seal.apply(used, np.arange(extent.first_page, extent.first_page + extent.pages))
    return checksums(used)


def checksums(pages: U8) -> NDArray[np.uint32]:
    """The stored checksums: uint32[n]."""
    return np.ascontiguousarray(pages[:, -4:]).view("<u4").reshape(-1)


def valid_pages(seal: PageSeal, pages: U8, first_page: int) -> NDArray[np.bool_]:
    """bool[n]: whether each of the consecutive pages is sound."""
    library = native.library()
    if library is not None:
        return library.valid(pages, seal, first_page)
    return seal.valid(pages, np.arange(first_page, first_page + len(pages)))


def write_extent(files: LayerFiles, extent: Extent, buffers: Buffers) -> str:
    """Packs one extent; returns its digest."""
    sums = build_extent(files, extent, buffers, buffers.pages)
    flat = buffers.pages[: extent.pages].reshape(-1)
    files.output.write_all(flat, extent.first_page * PAGE_BYTES)
    return extent_digest(sums)


def recover_extent(files: LayerFiles, extent: Extent, buffers: Buffers) -> str | None:
    """The digest of an extent that an earlier run left whole, or None."""
    offset = extent.first_page * PAGE_BYTES
    first = buffers.pages[:1].reshape(-1)
    if (
        files.output.read_into(first, offset) < PAGE_BYTES
        or not valid_pages(files.seal, buffers.pages[:1], extent.first_page).all()
    ):
        return None  # nothing was written here: do not read the rest
    used = buffers.pages[: extent.pages]
    if files.output.read_into(used.reshape(-1), offset) < used.size:
        return None
    return extent_digest(checksums(used)) if valid_pages(files.seal, used, extent.first_page).all() else None


def pack_extent(files: LayerFiles, extent: Extent, buffers: Buffers) -> str:
    """Keeps what is there and sound, else writes it."""
    return recover_extent(files, extent, buffers) or write_extent(files, extent, buffers)


def verify_extent(files: LayerFiles, extent: Extent, buffers: Buffers) -> str:
    """Reads an extent and its source again and compares them; returns its digest. Raises StoreError or
    MismatchError.
    """
    stored = buffers.pages[: extent.pages]
    got = files.output.read_into(stored.reshape(-1), extent.first_page * PAGE_BYTES)
    where = files.output.path
    if got < stored.size:
        raise StoreError(Reject.TRUNCATED, f"{where}: ends inside extent {extent.number}")
    sound = valid_pages(files.seal, stored, extent.first_page)
    if not sound.all():
        bad = int(np.flatnonzero(~sound)[0])
        reason, words = files.seal.diagnose(stored[bad], extent.first_page + bad)
        raise StoreError(reason, f"{where}: {words}")
    build_extent(files, extent, buffers, buffers.other)
    same = (stored == buffers.other[: extent.pages]).all(axis=1)
    if not same.all():
        page = extent.first_page + int(np.flatnonzero(~same)[0])
        raise MismatchError(
            f"{where}: page {page} is sound but differs from {files.header.weight.file}: pack again"
        )
    return extent_digest(checksums(stored))


Job = Callable[[LayerFiles, Extent, Buffers], str]


def run_extents(
    layers: Sequence[LayerFiles],
    job: Job,
    *,
    workers: int,
    comparing: bool,
    stop: threading.Event,
    advance: Callable[[int], None],
) -> dict[tuple[int, int], str] | None:
    """Runs `job` over every extent of every layer, the layers side by side; {(layer, extent): digest}.

    None when `stop` was set. `advance` is told the bytes of each finished extent, in this thread. The first
    failure ends the run and is raised.
    """
    work = sorted(
        (
            (extent.number, extent.layer, files, extent)
            for files in layers
            for extent in extents(files.header)
        ),
        key=lambda item: item[:2],
    )
    spare = [Buffers.new(comparing) for _ in range(min(workers, max(len(work), 1)))]
    digests: dict[tuple[int, int], str] = {}
    running: dict[Future[str], tuple[Extent, Buffers]] = {}
    with ThreadPoolExecutor(len(spare), thread_name_prefix="pack") as pool:
        queue = iter(work)
        exhausted = False
        while running or not exhausted:
            while spare and not exhausted and not stop.is_set():
                item = next(queue, None)
                if item is None:
                    exhausted = True
                    break
                buffers = spare.pop()
                running[pool.submit(job, item[2], item[3], buffers)] = (item[3], buffers)
            if stop.is_set():
                exhausted = True
            done, _ = wait(running, timeout=None if running else 0, return_when=FIRST_COMPLETED)
            for future in done:
                extent, buffers = running.pop(future)
                spare.append(buffers)
                try:
                    digests[extent.layer, extent.number] = future.result()
                except BaseException:
                    stop.set()
                    raise
                advance(extent.pages * PAGE_BYTES)
    return None if stop.is_set() else digests


def write_header(files: LayerFiles) -> None:
    """Page 0."""
    page = aligned(PAGE_BYTES)
    page[:] = np.frombuffer(encode_header(files.header), dtype=np.uint8)
    files.output.write_all(page, 0)


def read_header(file: DirectFile) -> bytes:
    """Page 0, shorter when the file is."""
    page = aligned(PAGE_BYTES)
    return page[: file.read_into(page, 0)].tobytes()


def total_bytes(plan: StorePlan) -> int:
    """What `advance` adds up to."""
    return sum(header.pages for header in plan.headers) * PAGE_BYTES
