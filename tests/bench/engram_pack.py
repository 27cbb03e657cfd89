"""How fast pack is: against a plain direct-I/O copy of the same bytes, and against the published way of packing.

    python -m tests.bench.engram_pack --dir DIR [--size-gb 8] [--rounds 7] [--json]

Every round runs, one after the other: a copy of the tables with direct I/O (as many threads and as large blocks as pack
uses), pack itself (as its program, its start included), and the published design (spans of 2^18 rows, buffered reads,
one thread, interleave, buffered write, fsync). Needs twice the size in DIR. Which of copy and pack goes first changes
from round to round, and what a run left (journal, freed blocks) is written out before the next one begins. Rounds that
are done are kept in DIR: the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sparkyard_engine.engram.direct import aligned, open_direct
from sparkyard_engine.engram.packing import WORKERS
from sparkyard_engine.engram.source import Checkpoint, open_checkpoint
from tests.bench.engram_figures import (
    MIN_ROUNDS,
    figures,
    file_system,
    machine,
    need_real_disk,
    ratio,
    report,
    resident_bytes,
    write_large_checkpoint,
)

BLOCK_BYTES = 8 << 20
PUBLISHED_SPAN_ROWS = 1 << 18
MEASURED = ("copied", "packed", "published", "cpu", "rss", "cached")
SETTLE_S = 2.0
"""ext4 hands freed blocks back behind the commit; the drive is busy with that for a moment."""


def copy_direct(checkpoint: Checkpoint, output: Path) -> float:
    """Seconds to copy the shards with direct I/O."""
    output.mkdir()
    started = time.perf_counter()
    for number, table in enumerate(checkpoint.tables):
        source = open_direct(checkpoint.directory / table.weight.file, os.O_RDONLY)
        target = open_direct(output / f"copy-{number}", os.O_RDWR | os.O_CREAT)
        size = table.rows * 264 // BLOCK_BYTES * BLOCK_BYTES
        spare = [aligned(BLOCK_BYTES) for _ in range(WORKERS)]

        def copy(offset: int, source=source, target=target, spare=spare) -> None:
            buffer = spare.pop()
            source.read_into(buffer, offset)
            target.write_all(buffer, offset)
            spare.append(buffer)

        with ThreadPoolExecutor(WORKERS) as pool:
            for _ in pool.map(copy, range(0, size, BLOCK_BYTES)):
                pass
        os.fsync(target.descriptor)
        source.close()
        target.close()
    return time.perf_counter() - started


def pack(checkpoint: Checkpoint, output: Path) -> tuple[float, float, int]:
    """Seconds, CPU seconds and peak memory of the program."""
    command = [
        sys.executable,
        "-m",
        "sparkyard_engine.engram.pack",
        "--checkpoint",
        str(checkpoint.directory),
    ]
    command += ["--revision", "bench", "--tp", "1", "--rank", "0", "--output", str(output)]
    started = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = time.perf_counter() - started
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu, after.ru_maxrss * 1024


def pack_as_published(checkpoint: Checkpoint, output: Path) -> float:
    """Seconds of the published design."""
    output.mkdir()
    started = time.perf_counter()
    for table in checkpoint.tables:
        with (
            (checkpoint.directory / table.weight.file).open("rb") as shard,
            (output / f"engram-l{table.layer}.bin.partial").open("wb") as file,
        ):
            file.write(bytes(4096))
            for first in range(0, table.rows, PUBLISHED_SPAN_ROWS):
                rows = min(PUBLISHED_SPAN_ROWS, table.rows - first)
                shard.seek(table.weight.offset + first * 256)
                weight = np.frombuffer(shard.read(rows * 256), np.uint8).reshape(rows, 256)
                shard.seek(table.scale.offset + first * 8)
                scale = np.frombuffer(shard.read(rows * 8), np.uint8).reshape(rows, 8)
                file.write(np.concatenate([weight, scale], axis=1).tobytes())
            file.flush()
            os.fsync(file.fileno())
    return time.perf_counter() - started


def settle(paths: list[Path]) -> None:
    """Writes out what earlier runs left, and drops these files from the page cache."""
    os.sync()
    time.sleep(SETTLE_S)
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--size-gb", type=float, default=8.2)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint in place")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    need_real_disk(args.dir)
    write_large_checkpoint(args.dir / "checkpoint", int(args.size_gb * 1e9))
    checkpoint = open_checkpoint(args.dir / "checkpoint")
    size = sum(table.rows for table in checkpoint.tables) * 264
    shards = [checkpoint.directory / table.weight.file for table in checkpoint.tables]
    work, record = args.dir / "work", args.dir / "rounds.json"
    rounds: dict[str, list[float]] = {name: [] for name in MEASURED}
    if record.exists():
        rounds = json.loads(record.read_text("utf-8"))

    def run_copy() -> None:
        rounds["copied"].append(size / copy_direct(checkpoint, work / "copy") / 1e9)

    def run_pack() -> None:
        took, used, peak = pack(checkpoint, work / "store")
        rounds["packed"].append(size / took / 1e9)
        rounds["cpu"].append(used / (size / 1e9))
        rounds["rss"].append(peak)
        rounds["cached"].append(resident_bytes([*shards, *(work / "store").glob("layer-*")]) / 1e6)

    def run_published() -> None:
        rounds["published"].append(size / pack_as_published(checkpoint, work / "published") / 1e9)

    for number in range(len(rounds["published"]), args.rounds):
        both = [run_copy, run_pack] if number % 2 == 0 else [run_pack, run_copy]
        for run in [*both, run_published]:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            settle(shards)
            run()
        record.write_text(json.dumps(rounds), "utf-8")
        done = {name: values[-1] for name, values in rounds.items()}
        sys.stderr.write(
            f"round {number + 1}: copy {done['copied']:.3f}, pack {done['packed']:.3f}, "
            f"published {done['published']:.3f} GB/s\n"
        )
    shutil.rmtree(work)
    if not args.keep:
        shutil.rmtree(args.dir / "checkpoint")
        record.unlink(missing_ok=True)
    report(
        {
            "schema": "sparkyard/bench-engram-pack/v1",
            "machine": machine(),
            "file_system": file_system(args.dir),
            "rounds": args.rounds,
            "table_bytes": size,
            "ratio_to_disk": ratio(rounds["packed"], rounds["copied"]),
            "ratio_to_published": ratio(rounds["packed"], rounds["published"]),
            "published_ratio_to_disk": ratio(rounds["published"], rounds["copied"]),
            "copy_speed": figures(rounds["copied"], "GB/s"),
            "pack_speed": figures(rounds["packed"], "GB/s"),
            "published_speed": figures(rounds["published"], "GB/s"),
            "cpu_per_gb": figures(rounds["cpu"], "CPU s/GB"),
            "rss_bytes": figures(rounds["rss"], "bytes"),
            "page_cache_left": figures(
                rounds["cached"], "MB of source and store in the page cache after pack"
            ),
        },
        args.json,
    )


if __name__ == "__main__":
    main()
