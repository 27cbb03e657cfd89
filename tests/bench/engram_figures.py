"""What the three Engram benchmarks share: medians with their spread, files of a given size, and the result's form."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import config_of, shard_header

MIN_ROUNDS = 7


def figures(values: Sequence[float], unit: str) -> dict[str, Any]:
    """Median, spread and all values of one measurement."""
    return {
        "unit": unit,
        "median": round(statistics.median(values), 6),
        "min": round(min(values), 6),
        "max": round(max(values), 6),
        "values": [round(value, 6) for value in values],
    }


def ratio(ours: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """ours / other round by round: interleaved runs share the weather."""
    return figures([a / b for a, b in zip(ours, other, strict=True)], "ratio")


def machine() -> dict[str, Any]:
    """Enough to tell two results apart."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def file_system(path: Path) -> str:
    """Its type, as the kernel names it."""
    run = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def need_real_disk(path: Path) -> None:
    """Exits with 3 on tmpfs: it takes direct reads at any alignment and has no drive below it."""
    kind = file_system(path)
    if kind in ("tmpfs", "ramfs", "overlayfs"):
        sys.stderr.write(f"{path} lies on {kind}: give --dir on a real file system\n")
        sys.exit(3)


def write_large_checkpoint(directory: Path, size_bytes: int, layers: Sequence[int] = (1, 14)) -> Layout:
    """A checkpoint whose tables take about `size_bytes`, of distinct random rows; kept when it is already there."""
    vocab = max(size_bytes // (len(layers) * 24 * 264), 101)
    layout = Layout.build(layer_ids=layers, max_ngram_size=4, heads=8, vocab_size=vocab)
    marker = directory / "config.json"
    if marker.exists() and json.loads(marker.read_text())["engram_vocab_size"] == vocab:
        return layout
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    random = np.random.Generator(np.random.SFC64(7))
    weight_map = {}
    for layer, rows in zip(layout.layer_ids, layout.table_rows, strict=True):
        tensors = [
            (f"layers.{layer}.engram.embed.weight", "F8_E4M3", (rows, 256)),
            (f"layers.{layer}.engram.embed.scale", "F8_E8M0", (rows, 8)),
        ]
        name = f"model-layer-{layer}.safetensors"
        with (directory / name).open("wb") as file:
            file.write(shard_header(tensors))
            left = rows * 264
            while left > 0:
                chunk = min(left, 1 << 26)
                file.write(random.bytes(chunk))
                left -= chunk
                file.flush()
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        weight_map.update({key: name for key, _, _ in tensors})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    marker.write_text(json.dumps(config_of(layout, vocab)))
    return layout


def resident_bytes(paths: Sequence[Path]) -> int:
    """How much of these files is in the page cache, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    total = 0
    for path in paths:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pages = np.frombuffer(mapped, dtype=np.uint8)
            count = -(-len(pages) // mmap.PAGESIZE)
            there = np.zeros(count, dtype=np.uint8)
            size = ctypes.c_size_t(len(pages))
            failed = libc.mincore(
                ctypes.c_void_p(pages.ctypes.data), size, ctypes.c_void_p(there.ctypes.data)
            )
            assert failed == 0, os.strerror(ctypes.get_errno())
            total += int((there & 1).sum()) * mmap.PAGESIZE
            del pages
    return total


def report(result: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or its headline figures as lines."""
    if as_json:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
        return
    for key, value in result.items():
        if isinstance(value, dict) and "median" in value:
            sys.stdout.write(
                f"{key}: {value['median']:.4g} {value['unit']} ({value['min']:.4g} … {value['max']:.4g})\n"
            )
        elif not isinstance(value, dict | list):
            sys.stdout.write(f"{key}: {value}\n")
