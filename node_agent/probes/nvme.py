"""Random direct reads of 4 KiB on a scratch file: one at a time, then 64 at a time; and cached against direct."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node_agent.probes.gpu import ProbeError

Report = Callable[[dict[str, Any]], None]
BLOCK_BYTES = 4096
FILE_BYTES = 1024**3  # larger than a drive's own cache; refused when less than four times as much is free
FREE_FACTOR = 4
CHUNK_BYTES = 4 * 1024**2
QD1_S, QD64_S = 3.0, 3.0
DEPTH = 64
COMPARED_BLOCKS = 2048
SEED = 20261129  # the same blocks on every node


def _buffer() -> mmap.mmap:
    """Page-aligned memory, as O_DIRECT wants."""
    return mmap.mmap(-1, BLOCK_BYTES)


def _fill(place: Path, size_bytes: int, report: Report) -> float:
    """Write incompressible data; bytes a second."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    started = time.monotonic()
    try:
        chunk = bytearray(random.Random(SEED).randbytes(CHUNK_BYTES))  # noqa: S311 - test data
        for index in range(size_bytes // CHUNK_BYTES):
            chunk[:8] = index.to_bytes(8, "little")
            view = memoryview(chunk)
            while view:
                view = view[os.write(descriptor, view) :]
            if index % 32 == 0:
                report({"probe": "nvme", "done": index * CHUNK_BYTES, "total": size_bytes})
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return size_bytes / (time.monotonic() - started)


def _random_reads(place: Path, size_bytes: int, seconds: float, workers: int) -> tuple[float, list[float]]:
    """Reads a second, and the latency in µs of each read of the first worker."""
    deadline = time.monotonic() + seconds
    counts = [0] * workers
    latencies: list[float] = []
    errors: list[OSError] = []

    def work(index: int) -> None:
        generator = random.Random(SEED + index)  # noqa: S311 - choice of blocks
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECT)
        buffer = _buffer()
        try:
            while (begin := time.perf_counter()) and time.monotonic() < deadline:
                os.preadv(descriptor, [buffer], generator.randrange(size_bytes // BLOCK_BYTES) * BLOCK_BYTES)
                counts[index] += 1
                if index == 0:
                    latencies.append((time.perf_counter() - begin) * 1e6)
        except OSError as error:
            errors.append(error)
        finally:
            os.close(descriptor)
            buffer.close()

    started = time.monotonic()
    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 30.0)
    if errors:
        raise ProbeError(f"nvme: direct read failed: {errors[0].strerror}")
    return sum(counts) / (time.monotonic() - started), latencies


def _mismatches(place: Path, size_bytes: int) -> int:
    """Blocks that differ between a read through the page cache and a direct one."""
    generator = random.Random(SEED)  # noqa: S311 - choice of blocks
    cached, direct = os.open(place, os.O_RDONLY), os.open(place, os.O_RDONLY | os.O_DIRECT)
    buffer = _buffer()
    wrong = 0
    try:
        for _ in range(COMPARED_BLOCKS):
            offset = generator.randrange(size_bytes // BLOCK_BYTES) * BLOCK_BYTES
            first = hashlib.sha256(os.pread(cached, BLOCK_BYTES, offset)).digest()
            os.preadv(direct, [buffer], offset)
            wrong += first != hashlib.sha256(buffer[:]).digest()
    finally:
        os.close(cached)
        os.close(direct)
        buffer.close()
    return wrong


def measure(
    folder: Path, report: Report, size_bytes: int = FILE_BYTES, seconds: float = QD1_S
) -> dict[str, Any]:
    """An `nvme` result. ProbeError when there is no room, or the file system cannot read directly.

    The scratch file lies in `folder` and is removed whatever happens.
    """
    space = os.statvfs(folder)
    free_bytes = space.f_bavail * space.f_frsize
    if free_bytes < FREE_FACTOR * size_bytes:
        raise ProbeError(
            f"nvme: {folder} has {free_bytes >> 20} MiB free, {FREE_FACTOR * size_bytes >> 20} are wanted"
        )
    descriptor, name = tempfile.mkstemp(prefix=".sparkyard-probe-", dir=folder)
    os.close(descriptor)
    place = Path(name)
    try:
        _fill(place, size_bytes, report)
        try:
            report({"probe": "nvme", "note": "random reads, one at a time"})
            qd1, latencies = _random_reads(place, size_bytes, seconds, 1)
            report({"probe": "nvme", "note": f"random reads, {DEPTH} at a time"})
            qd64, _ = _random_reads(place, size_bytes, seconds, DEPTH)
        except OSError as error:
            raise ProbeError(f"nvme: {folder} cannot be read directly: {error.strerror}") from error
        wrong = _mismatches(place, size_bytes)
    finally:
        with contextlib.suppress(OSError):
            place.unlink()
    ordered = sorted(latencies)
    return {
        "unix_s": time.time(),
        "path": str(folder),
        "qd1_iops": round(qd1, 1),
        "qd1_p99_us": round(ordered[int(0.99 * (len(ordered) - 1))], 1) if ordered else 0.0,
        "qd64_iops": round(qd64, 1),
        "mismatches": wrong,
    }
