"""Random direct reads of 4 KiB on a scratch file: one at a time, then 64 at a time; and cached against direct."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from node_agent.probes.gpu import ProbeError, package_place

Report = Callable[[dict[str, Any]], None]
BLOCK_BYTES = 4096
FILE_BYTES = 1024**3  # larger than a drive's own cache; refused when less than four times as much is free
FREE_FACTOR = 4
CHUNK_BYTES = 4 * 1024**2
STREAMS = 4  # large reads under way at a time: one alone leaves the drive idle while its data is taken
READ_S = 3.0
DEPTH = 64
PROCESSES = 8  # Python's lock lets one process start about 50,000 reads a second
MARGIN_S = 30.0
CHILD = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); from node_agent.probes.nvme import reads; "
    "print(json.dumps(reads(sys.argv[2], size_bytes=int(sys.argv[3]), seconds=float(sys.argv[4]), "
    "workers=int(sys.argv[5]), seed=int(sys.argv[6]))))"
)
COMPARED_BLOCKS = 2048
SEED = 20261129  # the same blocks on every node


def _buffer(size_bytes: int = BLOCK_BYTES) -> mmap.mmap:
    """Page-aligned memory, as O_DIRECT wants."""
    return mmap.mmap(-1, size_bytes)


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


def reads(place: str, size_bytes: int, seconds: float, workers: int, seed: int) -> dict[str, Any]:
    """Random direct reads by some threads of this process: their number, and the latency in µs of the first's.

    Raises OSError where the file system cannot read directly.
    """
    counts = [0] * workers
    latencies: list[float] = []
    errors: list[OSError] = []
    started = time.monotonic()

    def work(index: int) -> None:
        generator = random.Random(seed + index)  # noqa: S311 - choice of blocks
        buffer = _buffer()
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            errors.append(error)
            return
        try:
            while time.monotonic() - started < seconds:
                begin = time.perf_counter()
                os.preadv(descriptor, [buffer], generator.randrange(size_bytes // BLOCK_BYTES) * BLOCK_BYTES)
                counts[index] += 1
                if index == 0:
                    latencies.append((time.perf_counter() - begin) * 1e6)
        except OSError as error:
            errors.append(error)
        finally:
            os.close(descriptor)
            buffer.close()

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + MARGIN_S)
    if errors:
        raise errors[0]
    ordered = sorted(latencies)
    p99_us = ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0
    return {"iops": sum(counts) / (time.monotonic() - started), "p99_us": p99_us}


def _deep_reads(place: Path, size_bytes: int, seconds: float) -> float:
    """`DEPTH` reads at a time, spread over processes: the threads of one process would wait for each other."""
    workers = DEPTH // PROCESSES
    children = []
    for index in range(PROCESSES):
        arguments = [str(place), str(size_bytes), str(seconds), str(workers), str(SEED + 1000 * index)]
        command = [sys.executable, "-I", "-c", CHILD, package_place(), *arguments]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    total = 0.0
    try:
        for child in children:
            out, error = child.communicate(timeout=seconds + MARGIN_S)
            if child.returncode != 0:
                raise ProbeError(f"nvme: {error.decode('utf-8', 'replace').strip()[-300:]}")
            total += float(json.loads(out)["iops"])
    except subprocess.TimeoutExpired as error:
        raise ProbeError(
            f"nvme: no end of the reads after {seconds + MARGIN_S:g} s; the drive hangs"
        ) from error
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
    return total


def _sequential(place: Path, size_bytes: int) -> float:
    """Bytes a second of direct reads of the whole file in order, a few large ones under way at a time."""
    buffers = [_buffer(CHUNK_BYTES) for _ in range(STREAMS)]
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECT)

    def work(index: int) -> int:
        step = STREAMS * CHUNK_BYTES
        offsets = range(index * CHUNK_BYTES, size_bytes, step)
        return sum(os.preadv(descriptor, [buffers[index]], offset) for offset in offsets)

    try:
        started = time.monotonic()
        with ThreadPoolExecutor(STREAMS) as streams:
            return sum(streams.map(work, range(STREAMS))) / (time.monotonic() - started)
    finally:
        os.close(descriptor)
        for buffer in buffers:
            buffer.close()


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
    folder: Path, report: Report, size_bytes: int = FILE_BYTES, seconds: float = READ_S
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
            shallow = reads(str(place), size_bytes, seconds, 1, SEED)
        except OSError as error:
            raise ProbeError(f"nvme: {folder} cannot be read directly: {error.strerror}") from error
        report({"probe": "nvme", "note": f"random reads, {DEPTH} at a time"})
        deep_iops = _deep_reads(place, size_bytes, seconds)
        report({"probe": "nvme", "note": "reads in order"})
        sequential = _sequential(place, size_bytes)
        wrong = _mismatches(place, size_bytes)
    finally:
        with contextlib.suppress(OSError):
            place.unlink()
    return {
        "unix_s": time.time(),
        "path": str(folder),
        "qd1_iops": round(shallow["iops"], 1),
        "qd1_p99_us": round(shallow["p99_us"], 1),
        "qd64_iops": round(deep_iops, 1),
        "sequential_gigabytes_per_s": round(sequential / 1e9, 2),
        "mismatches": wrong,
    }
