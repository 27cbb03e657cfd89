"""`python -m sparkyard_engine.engram.pack`: packs, or verifies, the Engram rows of one rank onto this
machine's drive.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sparkyard_engine.engram import manifest as manifests
from sparkyard_engine.engram.errors import ConfigError, EngramError, Reject, StoreError
from sparkyard_engine.engram.format import PAGE_BYTES, check_header, encode_header
from sparkyard_engine.engram.manifest import LayerEntry, Manifest, layer_file_name
from sparkyard_engine.engram.ownership import Ownership
from sparkyard_engine.engram.packing import (
    MAX_WORKERS,
    WORKERS,
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
from sparkyard_engine.engram.plan import StorePlan, check_space, extents, partial_path, plan_store
from sparkyard_engine.engram.sampling import verify_sample
from sparkyard_engine.engram.source import Checkpoint, open_checkpoint
from sparkyard_engine.engram.status import JobStatus

STATUS_PERIOD_S: Final = 0.5
LOCK_NAME: Final = ".pack.lock"
EXIT_FINE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


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
        (output / manifests.FILE_NAME).unlink(missing_ok=True)
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


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parses; argparse itself exits with 2."""
    parser = argparse.ArgumentParser(prog="sparkyard_engine.engram.pack", description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder with config.json, index and shards"
    )
    parser.add_argument(
        "--revision", required=True, help="the checkpoint's pinned revision, at most 64 bytes"
    )
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ownership", type=Ownership, choices=list(Ownership), default=Ownership.BALANCED)
    parser.add_argument("--output", type=Path, required=True, help="the store's folder")
    parser.add_argument("--status", type=Path, help="job status file, rewritten twice a second")
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help=f"extents in flight, at most {MAX_WORKERS}"
    )
    parser.add_argument("--plan", action="store_true", help="print sizes and ranges, write nothing")
    parser.add_argument(
        "--verify", action="store_true", help="read the store and its source again, write nothing"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="with --verify: only N random rows a layer")
    args = parser.parse_args(argv)
    if not 1 <= args.workers <= MAX_WORKERS:
        parser.error(f"--workers is 1 to {MAX_WORKERS}")
    if args.sample is not None and (args.sample < 1 or not args.verify):
        parser.error("--sample takes a number of rows ≥ 1 and goes with --verify")
    return args


def run(args: argparse.Namespace, status: JobStatus, stop: threading.Event) -> int:
    """One call of the program after its arguments. Raises EngramError or OSError."""
    checkpoint = open_checkpoint(args.checkpoint)
    plan = plan_store(checkpoint, args.revision, args.tp, args.rank, args.ownership)
    for header in plan.headers:
        encode_header(
            header
        )  # a revision or a range list that the header cannot hold is refused before any work
    if args.plan:
        for header in plan.headers:
            sys.stdout.write(
                f"layer {header.layer}: {header.rows} rows, {header.rows * 264 / 2**30:.2f} GiB of rows, "
                f"{header.file_bytes} bytes packed\n"
            )
        sys.stdout.write(
            f"store {plan.identity.store_id}: {plan.row_bytes / 2**30:.2f} GiB of rows, "
            f"{plan.file_bytes / 2**30:.2f} GiB packed\n"
        )
        return EXIT_FINE
    total = total_bytes(plan)
    if args.verify and args.sample:
        found = check_store(plan, args.output)
        checked = verify_sample(args.checkpoint, found, args.output, args.sample)
        status.write("done", checked, checked, f"{checked} sampled rows equal their source")
        return EXIT_FINE
    if args.verify:
        done = verify(checkpoint, plan, args.output, status, args.workers, stop)
    else:
        done = pack(checkpoint, plan, args.output, status, args.workers, stop) is not None
    if not done:
        status.write("failed", 0, total, "interrupted; run again to go on", "interrupted")
        return EXIT_INTERRUPTED
    status.write("done", total, total, f"store {plan.identity.store_id}")
    return EXIT_FINE


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 fine, 1 failed, 2 usage or configuration, 130 interrupted."""
    args = arguments(sys.argv[1:] if argv is None else argv)
    status = JobStatus(args.status, "bytes")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        return run(args, status, stop)
    except ConfigError as wrong:
        return _fail(status, str(wrong), EXIT_USAGE)
    except EngramError as wrong:
        return _fail(status, str(wrong), EXIT_FAILED)
    except OSError as wrong:
        where = f"{wrong.filename}: " if wrong.filename else ""
        return _fail(status, f"{where}{wrong.strerror or wrong}", EXIT_FAILED)


def _fail(status: JobStatus, message: str, code: int) -> int:
    sys.stderr.write(f"pack: {message}\n")
    with contextlib.suppress(OSError):
        status.write("failed", 0, 0, "failed", message)
    return code


if __name__ == "__main__":
    sys.exit(main())
