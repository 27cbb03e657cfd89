"""How fast rows are read: against the drive's own limit, a bare submit-and-wait loop, and two published designs.

    python -m tests.bench.engram_read --dir DIR [--size-gb 8.2] [--rounds 7] [--json]

The limit is fio's best of io_uring, libaio and psync over several queue depths (fio is required). Designs: ours with
io_uring and with the pool; `packed96` (packed contiguous rows, 96 blocking threads, one id a ticket, no
de-duplication); `raw2` (the same threads, two reads a row on the raw tensors). Batches: random distinct rows (the worst
case), and rows hashed from real text. All reads are direct. The runs of a round follow each other at once; ratios are
taken in a round.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram import native, pack
from sparkyard_engine.engram.format import ROWS_PER_PAGE
from sparkyard_engine.engram.hashing import Layout
from sparkyard_engine.engram.native import address
from sparkyard_engine.engram.ownership import Ownership, slice_of
from sparkyard_engine.engram.reader import Backend, Reader
from sparkyard_engine.engram.source import open_checkpoint
from tests.bench.engram_figures import (
    MIN_ROUNDS,
    figures,
    file_system,
    machine,
    need_real_disk,
    ratio,
    report,
    write_large_checkpoint,
)
from tests.bench.engram_text import text_rows
from tests.engram_checkpoint import TRUE_CONFIG

LAYER = 1
FIO_CONFIGS = [("io_uring", 64), ("io_uring", 128), ("io_uring", 256), ("libaio", 64), ("libaio", 128)]
FIO_CONFIGS += [("libaio", 256), ("psync", 48), ("psync", 96)]
FIO_RUNTIME_S = 2
DECODE_ROWS = (72, 576)
DECODE_BATCHES = 120
LARGE_ROWS = 98_304
CHUNK_TOKENS = 8192
MIN_LARGE_ROWS = 4096
TP = 3
I64 = NDArray[np.int64]


def fio(file: Path, engine: str, depth: int) -> float:
    """Random 4 KiB direct reads a second."""
    jobs, queue = (depth, 1) if engine == "psync" else (1, depth)
    command = [
        "fio",
        "--name=x",
        f"--filename={file}",
        "--readonly",
        "--rw=randread",
        "--bs=4k",
        "--direct=1",
    ]
    command += [
        f"--ioengine={engine}",
        f"--iodepth={queue}",
        f"--numjobs={jobs}",
        "--thread",
        "--group_reporting",
    ]
    command += ["--time_based", f"--runtime={FIO_RUNTIME_S}", "--norandommap", "--randrepeat=0"]
    run = subprocess.run([*command, "--output-format=json"], capture_output=True, text=True, check=True)
    result: float = json.loads(run.stdout)["jobs"][0]["read"]["iops"]
    return result


@dataclass(frozen=True, slots=True)
class Run:
    """One timed batch run."""

    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], Any]) -> Run:
    """Wall and CPU seconds (all threads) of one call."""
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    took, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    return Run(took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


class Designs:
    """The comparison designs, compiled on the spot."""

    def __init__(self, folder: Path, shard: Path, weight_at: int, scale_at: int) -> None:
        library = folder / "designs.so"
        source = Path(__file__).with_name("engram_designs.cpp")
        subprocess.run(["c++", *native.FLAGS, str(source), "-o", str(library)], check=True)
        self.lib = ctypes.CDLL(str(library))
        for name in ("bare_open", "tickets_open"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.packed_read.restype = self.lib.raw_read.restype = ctypes.c_uint64
        self.file = os.open(shard, os.O_RDONLY | os.O_DIRECT)
        self.places = ctypes.c_uint64(weight_at), ctypes.c_uint64(scale_at)
        self.tickets = ctypes.c_void_p(self.lib.tickets_open(96))
        self.ring = ctypes.c_void_p(self.lib.bare_open(1024))

    def packed96(self, ids: I64, weight: Any, scale: Any) -> None:
        """The raw shard serves as the packed file: only places and sizes of the reads matter."""
        count = ctypes.c_uint64(len(ids))
        assert self.lib.packed_read(self.tickets, self.file, _p(ids), count, _p(weight), _p(scale)) == 0

    def raw2(self, ids: I64, weight: Any, scale: Any) -> None:
        """Two reads a row."""
        count = ctypes.c_uint64(len(ids))
        assert (
            self.lib.raw_read(self.tickets, self.file, *self.places, _p(ids), count, _p(weight), _p(scale))
            == 0
        )

    def bare(self, file: int, pages: NDArray[np.uint64]) -> None:
        """Submit all, wait for all."""
        assert self.lib.bare_read(self.ring, file, _p(pages), ctypes.c_uint64(len(pages))) == 0


def _p(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(array))


def distinct_rows(random: np.random.Generator, table: int, count: int) -> I64:
    """int64[count], in no order."""
    ids = np.unique(random.integers(0, table, count + count // 8 + 64))
    return np.ascontiguousarray(random.permutation(ids)[:count])


def percentiles(values: list[float]) -> tuple[float, float]:
    """p50 and p99 in microseconds."""
    low, high = np.percentile(np.asarray(values) * 1e6, [50, 99])
    return float(low), float(high)


def balance(layout: Layout, ids: I64) -> dict[str, Any]:
    """Distinct rows of every 8,192-token chunk, summed per rank: the largest over the mean."""
    out = {}
    for rule in Ownership:
        rows = np.zeros(TP)
        for first in range(0, len(ids) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
            for place, layer in enumerate(layout.layer_ids):
                distinct = np.unique(ids[first : first + CHUNK_TOKENS, place])
                for rank in range(TP):
                    rows[rank] += slice_of(rule, layout.bounds(layer), TP, rank).owned(distinct).sum()
        out[str(rule)] = {
            "rows": rows.astype(int).tolist(),
            "max_over_mean": round(float(rows.max() / rows.mean()), 4),
        }
    return out


def decode_latencies(
    reader: Reader, designs: Designs, file: int, random: np.random.Generator, rows: int, outputs: Any
) -> dict[str, tuple[float, float]]:
    """p50 and p99 of batches of `rows` distinct rows: ours and the bare loop, over the same offsets."""
    ours, bare = [], []
    for turn in range(DECODE_BATCHES):
        ids = distinct_rows(random, reader.header.rows, rows)
        pages = np.unique(ids // ROWS_PER_PAGE + 1).astype(np.uint64)
        # In turn one and the other goes first: the second may be served from caches below this machine.
        for mine in (turn % 2 == 0, turn % 2 == 1):
            if mine:
                ours.append(timed(lambda ids=ids: reader.read_distinct(ids, *outputs)).seconds)
            else:
                bare.append(timed(lambda pages=pages: designs.bare(file, pages)).seconds)
    return {"ours": percentiles(ours), "bare": percentiles(bare)}


def run_rounds(
    args: argparse.Namespace, readers: dict[str, Reader], designs: Designs, best: list[Any], text: I64
) -> dict[str, list[float]]:
    """All rounds; {name: [value per round]}."""
    store = readers["io_uring"]
    random = np.random.default_rng(11)
    rows = max(LARGE_ROWS, CHUNK_TOKENS * 8)
    weight, scale = np.empty((rows, 256), np.uint8), np.empty((rows, 8), np.uint8)
    index = np.empty(rows, np.int32)
    path = args.dir / "store" / f"layer-{LAYER}.rows"
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    out: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        out.setdefault(name, []).append(value)

    own_columns = np.arange(0, 24, TP)
    for number in range(args.rounds):
        add("disk_iops", max(fio(path, engine, depth) for engine, depth in best))
        for size in (MIN_LARGE_ROWS, LARGE_ROWS):
            batches = [
                distinct_rows(random, store.header.rows, size) for _ in range(max(1, LARGE_ROWS // size))
            ]
            distinct = size * len(batches)
            for name, reader in readers.items():
                before = reader.counters.pages_read
                run = timed(
                    lambda r=reader, b=batches: [
                        r.read_distinct(i, weight, scale, index[: len(i)]) for i in b
                    ]
                )
                add(f"{name}_{size}_iops", (reader.counters.pages_read - before) / run.seconds)
                add(f"{name}_{size}_rows_per_s", distinct / run.seconds)
                add(f"{name}_{size}_cpu", run.cpu_seconds / distinct * 1e6)
            run = timed(lambda b=batches: [designs.packed96(ids, weight, scale) for ids in b])
            add(f"packed96_{size}_rows_per_s", distinct / run.seconds)
            add(f"packed96_{size}_cpu", run.cpu_seconds / distinct * 1e6)
        run = timed(lambda b=batches: [designs.raw2(ids[:16384], weight, scale) for ids in b])
        add("raw2_rows_per_s", 16384 * len(batches) / run.seconds)
        first = number * CHUNK_TOKENS % (len(text) - CHUNK_TOKENS)
        ids = np.ascontiguousarray(text[first : first + CHUNK_TOKENS, 0][:, own_columns]).reshape(-1)
        add("text_unique_share", len(np.unique(ids)) / len(ids))
        for name, reader in readers.items():
            run = timed(lambda r=reader, i=ids: r.read_distinct(i, weight, scale, index[: len(i)]))
            add(f"{name}_text_rows_per_s", len(ids) / run.seconds)
            add(f"{name}_text_cpu", run.cpu_seconds / len(ids) * 1e6)
        run = timed(lambda i=ids: designs.packed96(i, weight, scale))
        add("packed96_text_rows_per_s", len(ids) / run.seconds)
        add("packed96_text_cpu", run.cpu_seconds / len(ids) * 1e6)
        for size in DECODE_ROWS:
            found = decode_latencies(store, designs, file, random, size, (weight, scale, index[:size]))
            for name, (low, high) in found.items():
                add(f"{name}_{size}_p50", low)
                add(f"{name}_{size}_p99", high)
    os.close(file)
    return out


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--size-gb", type=float, default=8.2)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--keep", action="store_true", help="leave checkpoint and store in place")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if shutil.which("fio") is None:
        sys.stderr.write("fio is required: it measures the drive's own limit (apt-get install fio)\n")
        sys.exit(3)
    if native.library() is None:
        sys.stderr.write(f"the native reader is required: {native.missing()}\n")
        sys.exit(3)
    args.dir.mkdir(parents=True, exist_ok=True)
    need_real_disk(args.dir)
    layout = write_large_checkpoint(args.dir / "checkpoint", int(args.size_gb * 1e9))
    base = ["--checkpoint", str(args.dir / "checkpoint"), "--revision", "bench", "--tp", "1", "--rank", "0"]
    if pack.main([*base, "--output", str(args.dir / "store")]) != 0:
        sys.exit(1)
    table = open_checkpoint(args.dir / "checkpoint").tables[0]
    path = args.dir / "store" / f"layer-{LAYER}.rows"
    sweep = {f"{engine}/{depth}": fio(path, engine, depth) for engine, depth in FIO_CONFIGS}
    engines = ("io_uring", "libaio", "psync")
    best = [
        max((c for c in FIO_CONFIGS if c[0] == name), key=lambda c: sweep[f"{c[0]}/{c[1]}"])
        for name in engines
    ]
    shard = args.dir / "checkpoint" / table.weight.file
    designs = Designs(args.dir, shard, table.weight.offset, table.scale.offset)
    readers = {
        name: Reader(args.dir / "store", LAYER, backend=name) for name in (Backend.IO_URING, Backend.POOL)
    }
    rounds = run_rounds(args, {str(k): v for k, v in readers.items()}, designs, best, text_rows(layout))
    for reader in readers.values():
        reader.close()
    if not args.keep:
        for name in ("checkpoint", "store"):
            shutil.rmtree(args.dir / name)
    true_layout = Layout.from_config(TRUE_CONFIG)
    report(
        summary(args, table.rows, sweep, best, rounds)
        | {"balance": balance(true_layout, text_rows(true_layout))},
        args.json,
    )


def summary(
    args: argparse.Namespace, rows: int, sweep: dict[str, float], best: list[Any], rounds: Any
) -> dict[str, Any]:
    """The result but for the balance."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result: dict[str, Any] = {
        "schema": "sparkyard/bench-engram-read/v1",
        "machine": machine(),
        "file_system": file_system(args.dir),
        "rounds": args.rounds,
        "table_rows": rows,
        "limit": {
            "tool": subprocess.run(
                ["fio", "--version"], capture_output=True, text=True, check=True
            ).stdout.strip(),
            "settings": f"randread bs=4k direct=1 runtime={FIO_RUNTIME_S}s, psync: depth = threads",
            "sweep_iops": {name: round(value) for name, value in sweep.items()},
            "per_round": [f"{engine}/{depth}" for engine, depth in best],
        },
        "ratio_to_disk": ratio(rounds[f"io_uring_{LARGE_ROWS}_iops"], rounds["disk_iops"]),
        f"ratio_to_disk_{MIN_LARGE_ROWS}": ratio(
            rounds[f"io_uring_{MIN_LARGE_ROWS}_iops"], rounds["disk_iops"]
        ),
        "ratio_to_disk_pool": ratio(rounds[f"pool_{LARGE_ROWS}_iops"], rounds["disk_iops"]),
        "ratio_to_published": ratio(
            rounds[f"io_uring_{LARGE_ROWS}_rows_per_s"], rounds[f"packed96_{LARGE_ROWS}_rows_per_s"]
        ),
        "ratio_to_published_text": ratio(
            rounds["io_uring_text_rows_per_s"], rounds["packed96_text_rows_per_s"]
        ),
        "ratio_to_raw2": ratio(rounds[f"io_uring_{LARGE_ROWS}_rows_per_s"], rounds["raw2_rows_per_s"]),
        "cpu_ratio_unique": ratio(rounds[f"io_uring_{LARGE_ROWS}_cpu"], rounds[f"packed96_{LARGE_ROWS}_cpu"]),
        "cpu_ratio_requested": ratio(rounds["io_uring_text_cpu"], rounds["packed96_text_cpu"]),
        "rss_bytes": figures([peak], "bytes, this whole program with 98,304-row buffers"),
    }
    for size in DECODE_ROWS:
        for level in ("p50", "p99"):
            result[f"decode_{size}_{level}_ratio"] = ratio(
                rounds[f"ours_{size}_{level}"], rounds[f"bare_{size}_{level}"]
            )
    units = {
        "iops": "reads/s",
        "_s": "rows/s",
        "cpu": "CPU s per million rows",
        "share": "share",
        "50": "µs",
        "99": "µs",
    }
    for name, values in rounds.items():
        result[name] = figures(values, next(unit for end, unit in units.items() if name.endswith(end)))
    return result


if __name__ == "__main__":
    main()
