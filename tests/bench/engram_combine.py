"""How the ranks' rows come together: zeros and a sum, or own columns and a gather. After the reads, on the devices.

    python -m tests.bench.engram_combine [--rounds 7] [--json]

Needs two or more CUDA devices of one host. `sum` dequantises all 24 columns (rows of others are zero) and all-reduces
them; `columns` dequantises the own columns, gathers and brings them into order. Both in captured graphs, in turn; the
results must be equal to the bit.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from sparkyard_engine.engram.torch_side.dequant import dequantise
from tests.bench.engram_figures import MIN_ROUNDS, figures, machine, ratio, report
from tests.bench.engram_gpu import graph_of, seconds

COLUMNS, WIDTH, ROWS, LAUNCHES = 24, 256, 200_000, 20
TOKENS = (6, 48, 1024, 8192)


def rank_main(rank: int, world: int, rounds: int, as_json: bool) -> None:
    """One device."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29713")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    device = torch.device("cuda", rank)
    random = torch.Generator(device).manual_seed(1)
    weight = torch.randint(0, 120, (ROWS, WIDTH), dtype=torch.uint8, device=device, generator=random)
    scale = torch.randint(100, 150, (ROWS, 8), dtype=torch.uint8, device=device, generator=random)
    own = torch.arange(rank, COLUMNS, world, device=device)
    order = torch.argsort(torch.cat([torch.arange(r, COLUMNS, world, device=device) for r in range(world)]))
    found: dict[str, list[float]] = {}
    for tokens in TOKENS:
        index = torch.randint(0, ROWS, (tokens, COLUMNS), dtype=torch.int32, device=device, generator=random)
        foreign = torch.ones(COLUMNS, dtype=torch.bool, device=device)
        foreign[own] = False
        masked = index.masked_fill(foreign, -1).reshape(-1)
        mine = index[:, own].contiguous().reshape(-1)
        whole = torch.empty((tokens * COLUMNS, WIDTH), dtype=torch.bfloat16, device=device)
        part = torch.empty((tokens * len(own), WIDTH), dtype=torch.bfloat16, device=device)
        parts = torch.empty((world, tokens, len(own), WIDTH), dtype=torch.bfloat16, device=device)
        result: dict[str, torch.Tensor] = {}

        def by_sum(masked=masked, whole=whole, result=result) -> None:
            dequantise(weight, scale, masked, whole, positive_zero=True)
            dist.all_reduce(whole)
            result["sum"] = whole

        def by_columns(mine=mine, part=part, parts=parts, result=result) -> None:
            dequantise(weight, scale, mine, part, positive_zero=True)
            dist.all_gather_into_tensor(parts, part)
            result["columns"] = parts.movedim(0, 1).flatten(1, 2).index_select(1, order)

        graphs = {"sum": graph_of(by_sum, LAUNCHES), "columns": graph_of(by_columns, LAUNCHES)}
        for _ in range(rounds):
            for name, graph in graphs.items():
                found.setdefault(f"{name}_{tokens}", []).append(seconds(graph, LAUNCHES) * 1e6)
        torch.cuda.synchronize()
        assert (
            result["sum"].view(torch.int16).flatten() == result["columns"].view(torch.int16).flatten()
        ).all()
    if rank == 0:
        out: dict[str, Any] = {
            "schema": "sparkyard/bench-engram-combine/v1",
            "machine": {**machine(), "devices": world, "device": torch.cuda.get_device_name(0)},
            "rounds": rounds,
            "equal": "all results of both ways are equal to the bit",
        }
        for tokens in TOKENS:
            out[f"columns_over_sum_{tokens}"] = ratio(found[f"columns_{tokens}"], found[f"sum_{tokens}"])
        out |= {name: figures(values, "µs") for name, values in found.items()}
        report(out, as_json)
    dist.destroy_process_group()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    world = torch.cuda.device_count()
    if world < 2:
        sys.stderr.write(f"skipped: {world} CUDA devices on this machine, two are needed\n")
        sys.exit(3)
    processes.spawn(rank_main, (world, args.rounds, args.json), nprocs=world)


if __name__ == "__main__":
    main()
