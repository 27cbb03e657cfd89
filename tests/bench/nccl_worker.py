"""One rank of `nccl_shards.py`: the sharded paths against one process, and what NCCL pins in host memory."""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sparkyard_engine.engram import pack
from sparkyard_engine.engram.hashing import Layout
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.padding import Plan, apply, place, rule_of, rules
from tests.engram_checkpoint import config_of, shard_header

HEADS, GROUPS = 64, 8  # DeepSeek-V4.1
FULL = {"hidden": 5120, "q_lora": 1280, "head": 512, "o_lora": 1024}
SMALL = {"hidden": 512, "q_lora": 128, "head": 64, "o_lora": 128}  # for a CPU
TOKENS = 96
BOUNDS = {
    "float64": 1e-12,
    "float32": 1e-5,
    "bfloat16": 2e-2,
}  # |sharded - one process| / largest |one process|
COLUMNS, ROW = 24, 256
ENGRAM_TOKENS = {"decode": 24, "prefill": 768}  # 4 requests of 6 tokens; the chunk at three ranks
REPEATS, WARM_UP = 50, 10
SIZES = {"61 KB": 61 * 1024, "8 MB": 8 << 20}  # one decode step's and one prefill chunk's all-reduce
MEMINFO = ("MemTotal", "MemFree", "MemAvailable", "Shmem", "Mlocked")
ROLLUP = ("Rss", "Pss", "Pss_Anon", "Pss_Shmem", "Locked")
SETTLE_S = 1.0


def device() -> torch.device:
    if dist.get_backend() == "gloo":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def weights(sizes: dict[str, int], dtype: torch.dtype, where: torch.device) -> dict[str, torch.Tensor]:
    """One attention layer of random weights under its checkpoint names, equal on every rank."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, dtype=torch.float32) / shape[-1] ** 0.5
        return values.to(where, dtype)

    per_group = HEADS // GROUPS * sizes["head"]
    return {
        "layers.2.attn.wq_a.weight": random(sizes["q_lora"], sizes["hidden"]),
        "layers.2.attn.wq_b.weight": random(HEADS * sizes["head"], sizes["q_lora"]),
        "layers.2.attn.wkv.weight": random(sizes["head"], sizes["hidden"]),
        "layers.2.attn.wo_a.weight": random(GROUPS * sizes["o_lora"], per_group),
        "layers.2.attn.wo_b.weight": random(sizes["hidden"], GROUPS * sizes["o_lora"]),
        "layers.2.attn.attn_sink": random(HEADS),
    }


def attention(
    x: torch.Tensor, held: dict[str, torch.Tensor], head: int, o_lora: int, scale: float
) -> torch.Tensor:
    """Causal attention with one latent key-value head and sinks, grouped output projection; not yet summed
    over ranks.

    x: [tokens, hidden]; the result has the same shape.
    """
    by = {name.removeprefix("layers.2.attn."): tensor for name, tensor in held.items()}
    tokens = len(x)
    queries = ((x @ by["wq_a.weight"].T) @ by["wq_b.weight"].T).view(tokens, -1, head)
    latent = x @ by["wkv.weight"].T
    scores = torch.einsum("thd,sd->hts", queries, latent) * scale
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    sinks = by["attn_sink"].view(-1, 1, 1).expand(-1, tokens, 1)
    shares = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :tokens]
    mixed = torch.einsum("hts,sd->thd", shares, latent)
    groups = len(by["wo_a.weight"]) // o_lora
    grouped = torch.einsum(
        "tgi,gri->tgr", mixed.reshape(tokens, groups, -1), by["wo_a.weight"].view(groups, o_lora, -1)
    )
    return grouped.reshape(tokens, -1) @ by["wo_b.weight"].T


def shard(held: dict[str, torch.Tensor], rank: int, ranks: int) -> tuple[dict[str, torch.Tensor], int]:
    """This rank's part after padding, cut as the rules say, and how many heads all ranks have together."""
    # FlashInfer's SM120 decode kernels exist for 8, 16, 32, 64 and 128 heads a rank: a power of two of groups
    groups = ranks * (1 << (-(-GROUPS // ranks) - 1).bit_length())
    heads = groups * HEADS // GROUPS
    known = rules()
    plan = Plan(known, place(heads=HEADS, groups=GROUPS, padded_heads=heads, padded_groups=groups, tp=ranks))
    part = {}
    for name, tensor in held.items():
        rule = rule_of(known, name)
        assert rule is not None
        padding = plan.pads(name)
        whole = tensor if padding is None else apply(name, tensor, padding, plan.placement)
        if name.endswith("attn_sink"):
            axis = 0  # every rank loads all sinks and uses those of its heads
        elif rule.split in {"rows", "columns"}:
            axis = 0 if rule.split == "rows" else 1
        else:
            part[name] = whole
            continue
        part[name] = whole.chunk(ranks, dim=axis)[rank].contiguous()
    return part, heads


def sharded_attention(rank: int, ranks: int) -> dict[str, Any]:
    where = device()
    sizes = FULL if where.type == "cuda" else SMALL
    scale = sizes["head"] ** -0.5
    found = {}
    for name, bound in BOUNDS.items():
        dtype = getattr(torch, name)
        held = weights(sizes, dtype, where)
        x = torch.randn(TOKENS, sizes["hidden"], generator=torch.Generator().manual_seed(3)).to(where, dtype)
        whole = attention(x, held, sizes["head"], sizes["o_lora"], scale)
        part, heads = shard(held, rank, ranks)
        del held
        summed = attention(x, part, sizes["head"], sizes["o_lora"], scale)
        dist.all_reduce(summed)
        worst = ((summed - whole).abs().max() / whole.abs().max()).item()
        found[name] = {"largest_difference": worst, "bound": bound, "equal": worst <= bound}
    return {"padded_heads": heads, "dimensions": sizes, "dtypes": found}


def timed(work: Callable[[], Any]) -> float:
    """Median seconds of a collective, all ranks together."""
    cuda = dist.get_backend() != "gloo"
    took = []
    for number in range(WARM_UP + REPEATS):
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        if number >= WARM_UP:
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def checkpoint(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """A small table in the true format whose rows decode to finite numbers; returns weight and scale."""
    layout = Layout.build(layer_ids=(1,), max_ngram_size=4, heads=8, vocab_size=2000)
    chance = np.random.default_rng(11)
    rows = layout.table_rows[0]
    weight = chance.integers(0, 256, (rows, ROW), dtype=np.uint8)
    weight[(weight & 0x7F) == 0x7F] = 0x3C  # the two NaNs of e4m3
    scale = chance.integers(120, 131, (rows, 8), dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [("weight", "F8_E4M3", weight), ("scale", "F8_E8M0", scale)]
    named = [(f"layers.1.engram.embed.{name}", dtype, data) for name, dtype, data in parts]
    with (folder / "model-00001.safetensors").open("wb") as file:
        file.write(shard_header([(name, dtype, data.shape) for name, dtype, data in named]))
        for _name, _dtype, data in named:
            file.write(data.tobytes())
    (folder / "config.json").write_text(json.dumps(config_of(layout, 2000)))
    index = {"weight_map": {name: "model-00001.safetensors" for name, _dtype, _data in named}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weight, scale


def decode_rows(weight: np.ndarray, scale: np.ndarray, where: torch.device) -> torch.Tensor:
    """uint8[n, 256] and uint8[n, 8] → bfloat16[n, 256], as the engine decodes them."""
    values = torch.from_numpy(weight).view(torch.float8_e4m3fn).to(torch.float32)
    powers = torch.exp2(torch.from_numpy(scale).to(torch.float32) - 127).repeat_interleave(32, dim=1)
    return (values * powers).to(torch.bfloat16).to(where)


def sharded_engram(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    """Balanced columns from each rank's own store on disk, put together by all-reduce and by gathering
    columns."""
    where = device()
    bounds = np.asarray(Layout.build(layer_ids=(1,), max_ngram_size=4, heads=8, vocab_size=2000).bounds(1))
    if rank == 0:
        checkpoint(folder / "checkpoint")
    dist.barrier()
    store = folder / f"store-{rank}"
    arguments = ["--checkpoint", str(folder / "checkpoint"), "--revision", "r1", "--output", str(store)]
    code = pack.main([*arguments, "--tp", str(ranks), "--rank", str(rank), "--ownership", "balanced"])
    assert code == 0
    weight, scale = checkpoint(folder / f"copy-{rank}")
    own = torch.arange(rank, COLUMNS, ranks)
    found: dict[str, Any] = {}
    with Reader(store, 1) as reader:
        found["backend"] = str(reader.backend)
        for phase, tokens in ENGRAM_TOKENS.items():
            chance = np.random.default_rng(tokens)
            ids = bounds[:-1] + chance.integers(0, bounds[1:] - bounds[:-1], (tokens, COLUMNS))
            flat = ids.reshape(-1)
            got = np.empty((len(flat), ROW), np.uint8), np.empty((len(flat), 8), np.uint8)
            reader.read_owned(flat, *got)
            mine = decode_rows(*got, where).view(tokens, COLUMNS, ROW)
            whole = decode_rows(weight[flat], scale[flat], where).view(tokens, COLUMNS, ROW)
            columns = mine[:, own.to(where)].contiguous()
            pieces = torch.empty(ranks, *columns.shape, dtype=mine.dtype, device=where)

            def gather(pieces: torch.Tensor = pieces, columns: torch.Tensor = columns) -> torch.Tensor:
                dist.all_gather_into_tensor(pieces.view(-1), columns.view(-1))
                # column c is at place c // ranks of rank c % ranks
                return pieces.permute(1, 2, 0, 3).reshape(len(columns), COLUMNS, ROW)

            reduced = mine.clone()
            dist.all_reduce(reduced)
            size = mine.numel() * mine.element_size()
            scratch = mine.clone()
            found[phase] = {
                "all_reduce_equal": bool(torch.equal(reduced, whole)),
                "gather_equal": bool(torch.equal(gather(), whole)),
                "tensor_bytes": size,
                "all_reduce_sent_bytes": 2 * (ranks - 1) * size // ranks,  # ring: reduce-scatter and gather
                "gather_sent_bytes": (ranks - 1) * size // ranks,
                "all_reduce_s": timed(lambda scratch=scratch: dist.all_reduce(scratch)),
                "gather_s": timed(gather),
            }
    return found


def memory() -> dict[str, Any]:
    """Host memory of the machine and of this process, in bytes."""
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
    rollup = dict(
        re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    )
    mapped: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_rest, path = (
            line.split(maxsplit=5) if line.count(" ") > 4 and "/" in line else (line.split()[0], "")
        )
        kind = next((kind for kind in ("/dev/nvidia", "/dev/shm/nccl", "/dev/zero") if kind in path), "")
        if kind:
            begin, end = (int(part, 16) for part in span.split("-"))
            mapped[kind] = mapped.get(kind, 0) + end - begin
    return {
        "machine": {key: int(kib[key]) * 1024 for key in MEMINFO if key in kib},
        "process": {key: int(rollup[key]) * 1024 for key in ROLLUP if key in rollup},
        "mapped": mapped,
    }


def nccl_lines(folder: Path, pattern: str) -> dict[str, Any]:
    """What NCCL says of itself: connections by transport, and bytes it allocated by kind of memory."""
    text = "\n".join(path.read_text(errors="replace") for path in folder.glob(pattern))
    sums = {
        "host_pinned_bytes": r"Cuda Host Alloc Size (\d+)",
        "device_bytes": r"Cuda(?: VMM)? Alloc Size (\d+)",
        "shared_memory_bytes": r"Allocated (?:shareable host buffer|(?=\d+ bytes of shared memory)).*?(\d+)",
    }
    connections: dict[str, int] = {}
    for direction, transport in re.findall(r"\[(send|receive)\] via (\w+(?:/\w+)?)", text):
        connections[f"{transport} {direction}"] = connections.get(f"{transport} {direction}", 0) + 1
    allocations = [line for line in text.splitlines() if re.search(r"[Aa]lloc", line)]
    kinds = dict.fromkeys(
        re.sub(r"0x[0-9a-f]+|\d+", "#", line.split("NCCL INFO", 1)[-1]) for line in allocations
    )
    return {
        "version": next(iter(re.findall(r"NCCL version ([\d.]+)", text)), None),
        "connections": connections,
        "channels": sorted({int(number) for number in re.findall(r"Channel (\d+)/\d+ : ", text)}),
        **{name: sum(map(int, re.findall(expression, text))) for name, expression in sums.items()},
        "host_allocations": sorted(
            (
                (int(size), count)
                for size, count in _counted(re.findall(sums["host_pinned_bytes"], text)).items()
            ),
            reverse=True,
        )[:12],
        "line_kinds": list(kinds)[:20],
    }


def _counted(values: list[str]) -> dict[str, int]:
    return {value: values.count(value) for value in set(values)}


def pinned(folder: Path, debug_pattern: str, control: dist.ProcessGroup) -> dict[str, Any]:
    """Memory before and after NCCL connects, and the two all-reduces timed."""
    where = device()
    tensors = {
        name: torch.ones(size // 2, dtype=torch.bfloat16, device=where) for name, size in SIZES.items()
    }
    torch.cuda.synchronize()
    dist.barrier(group=control)
    time.sleep(SETTLE_S)
    before = memory()
    dist.barrier(group=control)
    times = {name: timed(lambda tensor=tensor: dist.all_reduce(tensor)) for name, tensor in tensors.items()}
    for _ in range(int(os.environ.get("COMMUNICATORS", "1")) - 1):
        group = dist.new_group(backend="nccl")
        for tensor in tensors.values():
            dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    dist.barrier(group=control)
    time.sleep(SETTLE_S)
    after = memory()
    dist.barrier(group=control)
    grown = {
        part: {
            key: after[part].get(key, 0) - before[part].get(key, 0)
            for key in dict.fromkeys([*before[part], *after[part]])
        }
        for part in before
    }
    return {
        "before": before,
        "grown": grown,
        "all_reduce_s": times,
        "nccl": nccl_lines(folder, debug_pattern),
    }


def work(part: str, folder: Path, backend: str) -> dict[str, Any]:
    """Everything of one rank."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    debug_pattern = f"nccl-{rank}.*"
    if backend == "nccl":
        os.environ["NCCL_DEBUG_FILE"] = str(folder / f"nccl-{rank}.%p")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.ones(1, device="cuda")
    dist.init_process_group(backend)
    control = dist.new_group(backend="gloo")
    try:
        if part == "memory":
            return {"rank": rank, **pinned(folder, debug_pattern, control)}
        return {
            "rank": rank,
            "attention": sharded_attention(rank, ranks),
            "engram": sharded_engram(folder, rank, ranks),
        }
    finally:
        dist.destroy_process_group()
