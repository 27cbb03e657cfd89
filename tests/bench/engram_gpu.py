"""The device side: the dequantising gather against the device's copy bandwidth and against the engine's own kernel, and
whole lookups, eager and in a replayed graph.

    python -m tests.bench.engram_gpu [--rounds 7] [--json]

Needs a CUDA device. The engine's kernel is measured beside ours where SGLang can be imported. Kernel times are those of
100 launches in one captured graph, so that launching is not what is measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sparkyard_engine.engram import pack
from sparkyard_engine.engram.hashing import Layout
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.engram.torch_side.dequant import dequantise
from sparkyard_engine.engram.torch_side.embedding import DiskEmbedding
from sparkyard_engine.engram.torch_side.staging import Staging
from tests.bench.engram_figures import MIN_ROUNDS, figures, machine, ratio, report
from tests.engram_checkpoint import write_checkpoint

TABLE_ROWS = 8_000_000
SIZES = (72, 576, 1728, 13_824, 196_608, 2_097_152)
LARGE = (196_608, 2_097_152)
LAUNCHES = 100
ROW_TRAFFIC_BYTES = 264 + 512  # read as stored, written as bf16


def graph_of(work: Callable[[], object], launches: int = LAUNCHES) -> torch.cuda.CUDAGraph:
    """`launches` runs of `work` in one graph, warmed."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            work()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def seconds(graph: torch.cuda.CUDAGraph, launches: int = LAUNCHES) -> float:
    """Of one run of the work; an untimed replay goes before, so that none pays for what ran before it."""
    graph.replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / launches


def copy_seconds(source: torch.Tensor, target: torch.Tensor) -> float:
    """The fastest of ten plain copies: launched one by one, since a copy node of a graph takes a slower path."""
    times = []
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)


def engine_gather() -> Callable[..., Any] | None:
    """SGLang's own kernel, or None."""
    try:
        from sglang.kernels.ops.embeddings.engram_gather import engram_gather
    except ImportError:
        return None
    return engram_gather  # type: ignore[no-any-return]


def gather_rounds(rounds: int) -> dict[str, list[float]]:
    """GB/s of copy, and per size the seconds of ours and theirs, round by round."""
    device = torch.device("cuda:0")
    weight = torch.randint(0, 256, (TABLE_ROWS, 256), dtype=torch.uint8, device=device)
    scale = torch.randint(100, 150, (TABLE_ROWS, 8), dtype=torch.uint8, device=device)
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    theirs = engine_gather()
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    kept = []
    for size in SIZES:
        index = torch.randint(0, TABLE_ROWS, (size,), dtype=torch.int32, device=device)
        out = torch.empty((size, 256), dtype=torch.bfloat16, device=device)
        kept.append((index, out))
        graphs[f"ours_{size}"] = graph_of(
            lambda index=index, out=out: dequantise(weight, scale, index, out, positive_zero=False)
        )
        if theirs is not None:
            graphs[f"engine_{size}"] = graph_of(
                lambda index=index, out=out: theirs(weight.data_ptr(), scale.data_ptr(), index, out, 256, 32)
            )
    found: dict[str, list[float]] = {"copy": []}
    for _ in range(rounds):
        found["copy"].append(2 * source.numel() / copy_seconds(source, target) / 1e9)
        for name, graph in graphs.items():
            found.setdefault(name, []).append(seconds(graph))
    return found


def lookup_rounds(rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of whole lookups (ids on the device → bf16 rows on the device) of random distinct rows."""
    layout = Layout.build(layer_ids=(1,), max_ngram_size=4, heads=8, vocab_size=40_000)
    write_checkpoint(folder / "checkpoint", layout, 40_000)
    argv = ["--checkpoint", str(folder / "checkpoint"), "--revision", "bench", "--tp", "1", "--rank", "0"]
    if pack.main([*argv, "--output", str(folder / "store")]) != 0:
        sys.exit(1)
    found: dict[str, list[float]] = {}
    with Reader(folder / "store", 1) as reader:
        embedding = DiskEmbedding(reader, 24, staging=Staging(reader, torch.device("cuda:0")))
        for tokens in (3, 24, 1024):
            ids = torch.randint(0, layout.table_rows[0], (tokens, 24), device="cuda")
            embedding.rows(ids)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                embedding.rows(ids)
            for _ in range(rounds):
                for name, work in (("eager", lambda ids=ids: embedding.rows(ids)), ("graph", graph.replay)):
                    times = []
                    for _ in range(5):
                        ids.random_(layout.table_rows[0])
                        torch.cuda.synchronize()
                        started = time.perf_counter()
                        work()
                        torch.cuda.synchronize()
                        times.append(time.perf_counter() - started)
                    found.setdefault(f"lookup_{name}_{24 * tokens}", []).append(statistics.median(times))
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--dir", type=Path, help="a real file system for the lookups")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("skipped: no CUDA device on this machine\n")
        sys.exit(3)
    found = gather_rounds(args.rounds)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        lookups = lookup_rounds(args.rounds, Path(folder))
    name = torch.cuda.get_device_name(0)
    result: dict[str, Any] = {
        "schema": "sparkyard/bench-engram-gpu/v1",
        "machine": {**machine(), "device": name, "torch": torch.__version__},
        "rounds": args.rounds,
        "table_rows": TABLE_ROWS,
        "copy_speed": figures(found["copy"], "GB/s read and written"),
    }
    for size in SIZES:
        ours = found[f"ours_{size}"]
        speed = [size * ROW_TRAFFIC_BYTES / each / 1e9 for each in ours]
        result[f"gather_{size}"] = figures([each * 1e6 for each in ours], "µs")
        if size in LARGE:
            result[f"ratio_to_copy_{size}"] = ratio(speed, found["copy"])
        theirs = found.get(f"engine_{size}")
        if theirs is not None:
            result[f"engine_gather_{size}"] = figures([each * 1e6 for each in theirs], "µs")
            result[f"ratio_to_published_{size}"] = ratio(theirs, ours)
            if size in LARGE:
                engine_speed = [size * ROW_TRAFFIC_BYTES / each / 1e9 for each in theirs]
                result[f"engine_ratio_to_copy_{size}"] = ratio(engine_speed, found["copy"])
    for key, values in lookups.items():
        if key.startswith("lookup"):
            result[key] = figures([each * 1e6 for each in values], "µs")
    report(result, args.json)


if __name__ == "__main__":
    main()
