"""The job behind `pack`: from an empty or half-written folder to a whole store, and its verification."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sparkyard_engine.engram import manifest as manifests
from sparkyard_engine.engram.errors import EngramError, Reject, StoreError
from sparkyard_engine.engram.format import PAGE_BYTES, check_header, encode_header
from sparkyard_engine.engram.manifest import LayerEntry, Manifest, layer_file_name
from sparkyard_engine.engram.packing import (
    LayerFiles,
    open_layer,
    pack_extent,
    read_header,
    run_extents,
    total_bytes,
    verify_extent,
    write_extent,
    write_header,
)
from sparkyard_engine.engram.plan import StorePlan, check_space, extents, partial_path
from sparkyard_engine.engram.source import Checkpoint
from sparkyard_engine.engram.status import JobStatus
from sparkyard_engine.files import sync_folder

STATUS_PERIOD_S: Final = 0.5
LOCK_NAME: Final = ".pack.lock"


@dataclass(slots=True)
class Progress:
    """Bytes per second and time left, written at most every half second."""

    status: JobStatus
    total: int
    verb: str
    done: int = 0
    _start: float = field(default_factory=time.monotonic)
    _last: float = 0.0

    def advance(self, size: int) -> None:
        """`size` more bytes are finished."""
        self.done += size
        now = time.monotonic()
        if now - self._last >= STATUS_PERIOD_S:
            self._last = now
            self.status.write("running", self.done, self.total, self.note())

    def note(self) -> str:
        """For people."""
        rate = self.done / max(time.monotonic() - self._start, 1e-9)
        left = (self.total - self.done) / rate if rate else 0.0
        return f"{self.verb}: {rate / 1e9:.2f} GB/s, {left:.0f} s left"


@contextlib.contextmanager
def only_packer(output: Path) -> Iterator[None]:
    """Holds the folder's lock. Raises StoreError when another process packs here."""
    with (output / LOCK_NAME).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngramError(f"{output}: another pack runs here; wait for it or end it") from None
        yield


def finished(plan: StorePlan, output: Path) -> Manifest | None:
    """The manifest, when the folder already holds the whole planned store.

    Raises StoreError when it holds another one: a good store is never overwritten. None when there is no
    manifest, or one that cannot be believed: its layer files are then proven page by page and kept as far as
    they are sound.
    """
    try:
        found = manifests.load(output)
    except StoreError as rejected:
        if rejected.reason in (Reject.MISSING, Reject.MANIFEST_CORRUPT):
            return None
        raise
    manifests.check_identity(found.identity, plan.identity, str(output / manifests.FILE_NAME))
    if tuple(entry.header for entry in found.layers) != plan.headers:
        raise StoreError(
            Reject.OTHER_MODEL,
            f"{output}: packed from a checkpoint with other tensor places: remove it and pack again",
        )
    for entry in found.layers:
        path = output / entry.file
        if not path.exists() or path.stat().st_size != entry.header.file_bytes:
            return None
        with path.open("rb") as file:
            try:
                check_header(file.read(PAGE_BYTES), entry.header, str(path))
            except StoreError:
                return None
    return found


def prepare(files: LayerFiles) -> bool:
    """Gives the partial file its header and size; True when an earlier run of the same pack left it."""
    if read_header(files.output) == encode_header(files.header):
        resumed = True
    else:
        os.ftruncate(files.output.descriptor, 0)
        resumed = False
    os.posix_fallocate(files.output.descriptor, 0, files.header.file_bytes)
    os.ftruncate(files.output.descriptor, files.header.file_bytes)
    if not resumed:
        write_header(files)
    return resumed


def pack(
    checkpoint: Checkpoint,
    plan: StorePlan,
    output: Path,
    status: JobStatus,
    workers: int,
    stop: threading.Event,
) -> Manifest | None:
    """Writes what is missing, then the manifest; None when `stop` was set. Raises EngramError or OSError."""
    output.mkdir(parents=True, exist_ok=True)
    with only_packer(output):
        there = finished(plan, output)
        if there is not None:
            return there
        check_space(plan, output)
        # From here on the folder holds no store until the new manifest is in place.
        if (output / manifests.FILE_NAME).exists():
            (output / manifests.FILE_NAME).unlink()
            sync_folder(output)  # before a byte changes: a power loss must not bring it back over half a file
        for header in plan.headers:
            whole = output / layer_file_name(header.layer)
            if whole.exists():
                whole.replace(partial_path(output, header.layer))
        progress = Progress(status, total_bytes(plan), "pack")
        with contextlib.ExitStack() as opened:
            layers = [
                opened.enter_context(
                    open_layer(checkpoint.directory, header, partial_path(output, header.layer), writing=True)
                )
                for header in plan.headers
            ]
            resumed = {files.header.layer: prepare(files) for files in layers}
            digests = run_extents(
                layers,
                lambda files, extent, buffers: (pack_extent if resumed[extent.layer] else write_extent)(
                    files, extent, buffers
                ),
                workers=workers,
                comparing=False,
                stop=stop,
                advance=progress.advance,
            )
            for files in layers:
                os.fsync(files.output.descriptor)
        if digests is None:
            return None
        return _publish(plan, output, digests)


def _publish(plan: StorePlan, output: Path, digests: dict[tuple[int, int], str]) -> Manifest:
    entries = []
    for header in plan.headers:
        name = layer_file_name(header.layer)
        partial_path(output, header.layer).replace(output / name)
        entries.append(
            LayerEntry(header, name, tuple(digests[header.layer, part.number] for part in extents(header)))
        )
    manifest = Manifest(plan.identity, tuple(entries))
    manifests.write_whole(output / manifests.FILE_NAME, manifests.encode(manifest))
    return manifest


def verify(
    checkpoint: Checkpoint,
    plan: StorePlan,
    output: Path,
    status: JobStatus,
    workers: int,
    stop: threading.Event,
) -> bool:
    """Reads every page and its source again. False when `stop` was set. Raises StoreError, MismatchError."""
    found = check_store(plan, output)
    progress = Progress(status, total_bytes(plan), "verify")
    with contextlib.ExitStack() as opened:
        layers = [
            opened.enter_context(
                open_layer(checkpoint.directory, entry.header, output / entry.file, writing=False)
            )
            for entry in found.layers
        ]
        digests = run_extents(
            layers, verify_extent, workers=workers, comparing=True, stop=stop, advance=progress.advance
        )
    if digests is None:
        return False
    for entry in found.layers:
        for number, digest in enumerate(entry.digests):
            if digests[entry.header.layer, number] != digest:
                raise StoreError(
                    Reject.MANIFEST_CORRUPT,
                    f"{output / entry.file}: extent {number} has another digest than the manifest",
                )
    return True


def check_store(plan: StorePlan, output: Path) -> Manifest:
    """The manifest of the planned store, headers and sizes checked. Raises StoreError."""
    found = manifests.load(output)
    manifests.check_identity(found.identity, plan.identity, str(output / manifests.FILE_NAME))
    for entry, header in zip(found.layers, plan.headers, strict=True):
        path = output / entry.file
        if not path.exists():
            raise StoreError(Reject.MISSING, f"{path}: the manifest names it")
        with path.open("rb") as file:
            check_header(file.read(PAGE_BYTES), header, str(path))
        if path.stat().st_size != header.file_bytes:
            raise StoreError(Reject.TRUNCATED, f"{path}: {path.stat().st_size} of {header.file_bytes} bytes")
    return found
