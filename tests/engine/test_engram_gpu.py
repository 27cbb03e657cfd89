"""The device path on a CUDA device: bits, graphs, prefetch, and a read error in a replayed graph.

Skipped, with that word, where there is no such device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("skipped: no CUDA device on this machine", allow_module_level=True)

from sparkyard_engine.engram import pack
from sparkyard_engine.engram.format import PAGE_BYTES
from sparkyard_engine.engram.hashing import Layout
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.engram.torch_side.dequant import dequantise, dequantise_reference
from sparkyard_engine.engram.torch_side.embedding import Combine, DiskEmbedding
from sparkyard_engine.engram.torch_side.staging import NotWarmError, Staging
from tests.engine.packed import pack_ranks, same_bits
from tests.engram_checkpoint import write_checkpoint

VOCAB = 1009
LAYOUT = Layout.build(layer_ids=(1, 14), max_ngram_size=4, heads=8, vocab_size=VOCAB)
ROWS = LAYOUT.table_rows[0]
DEVICE = torch.device("cuda:0")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    base = tmp_path_factory.mktemp("gpu")
    made = write_checkpoint(base / "checkpoint", LAYOUT, VOCAB)
    for layer in made.values():
        layer[1][layer[1] == 255] = 254  # the engine's own kernel takes 255 for infinity, the format says NaN
    # The tables on disk have to be the same ones.
    for number, layer in enumerate(LAYOUT.layer_ids):
        shard = base / "checkpoint" / f"model-{number:05d}-0.safetensors"
        data = bytearray(shard.read_bytes())
        data[-made[layer][1].size :] = made[layer][1].tobytes()
        shard.write_bytes(data)
    pack_ranks(base, ((1, 0), (3, 0), (3, 1), (3, 2)))
    return base, made


def in_memory(made, layer: int = 1):
    """The serving engine's own embedding, one rank, its table in device memory."""
    engram = pytest.importorskip("sglang.srt.layers.engram")
    parallel = pytest.importorskip("sglang.srt.runtime_context").get_parallel()
    bounds = LAYOUT.bounds(layer)
    with torch.device(DEVICE), parallel.override(tp_size=1, tp_rank=0):
        table = engram.EngramEmbedding(bounds[-1], 256, layer, column_bounds=bounds)
    weight, scale = made[layer]
    table._load_rows(table.weight, torch.from_numpy(weight).view(torch.float8_e4m3fn))
    table._load_rows(table.scale, torch.from_numpy(scale).view(torch.float8_e8m0fnu))
    return table


def some_ids(tokens: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, ROWS, (tokens, 24))).to(DEVICE)


def test_the_kernel_equals_the_reference_for_every_byte_pair() -> None:
    weight = torch.arange(256, dtype=torch.uint8).repeat(256, 1).to(DEVICE)
    scale = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, 8).to(DEVICE)
    for count in (1, 3, 72, 4096, 4097, 20_000):
        index = torch.randint(
            -1, 256, (count,), dtype=torch.int32, generator=torch.Generator().manual_seed(count)
        )
        for positive_zero in (False, True):
            out = torch.full((count, 256), 7, dtype=torch.bfloat16, device=DEVICE)
            dequantise(weight, scale, index.to(DEVICE), out, positive_zero=positive_zero)
            due = dequantise_reference(weight.cpu(), scale.cpu(), index, positive_zero=positive_zero)
            assert same_bits(out.cpu(), due)
            assert torch.isnan(due[index == 255]).all()


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 3, 24, 400])
def test_the_embedding_equals_the_engine_own(tables, tokens, aside) -> None:
    base, made = tables
    table = in_memory(made)
    with Reader(base / "tp1-0", 1) as reader:
        ours = DiskEmbedding(reader, 24, staging=Staging(reader, DEVICE))
        for seed in range(5):
            ids = some_ids(tokens, seed)
            if seed == 4 and tokens:
                ids = ids[torch.zeros(tokens, dtype=torch.long, device=DEVICE)]  # all duplicates
            if aside:
                ours.prefetch(ids)
            assert same_bits(ours.rows(ids), table(ids))
        torch.cuda.synchronize()


@pytest.mark.parametrize("combine", Combine)
def test_three_ranks_together_equal_one_table(tables, combine) -> None:
    base, made = tables
    bounds = np.asarray(LAYOUT.bounds(14))
    ids = bounds[:-1] + np.random.default_rng(9).integers(0, 1 << 40, (200, 24)) % np.diff(bounds)
    ids = torch.from_numpy(ids).to(DEVICE)
    parts: list[torch.Tensor] = []
    for rank in range(4):
        with Reader(base / f"tp3-{rank % 3}", 14) as reader:

            def collective(mine: torch.Tensor, rank: int = rank) -> torch.Tensor:
                if rank < 3:
                    parts.append(mine.clone())
                    return mine if combine is Combine.SUM else mine.unsqueeze(0).repeat(3, 1, 1, 1)
                return parts[0] + parts[1] + parts[2] if combine is Combine.SUM else torch.stack(parts)

            embedding = DiskEmbedding(
                reader,
                24,
                staging=Staging(reader, DEVICE),
                combine=combine,
                reduce=collective,
                gather=collective,
            )
            whole = embedding.rows(ids)
            torch.cuda.synchronize()
    table = in_memory(made, 14)(ids)
    assert same_bits(whole, torch.where(table == 0, torch.zeros_like(table), table))


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("tokens", [3, 24, 576])
def test_a_replayed_graph_reads_the_rows_of_its_new_ids(tables, tokens, aside) -> None:
    base, made = tables
    table = in_memory(made)
    with Reader(base / "tp1-0", 1) as reader:
        staging = Staging(reader, DEVICE)
        ours = DiskEmbedding(reader, 24, staging=staging)
        ids = some_ids(tokens, 0)
        ours.rows(ids)  # warms buffers and kernel
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            if aside:
                ours.prefetch(ids)
            out = ours.rows(ids)
        for seed in range(1, 30):
            ids.copy_(some_ids(tokens, seed))
            graph.replay()
            torch.cuda.synchronize()
            assert same_bits(out, table(ids))


def test_a_prefetch_of_other_ids_is_not_taken(tables) -> None:
    base, made = tables
    table = in_memory(made)
    with Reader(base / "tp1-0", 1) as reader:
        ours = DiskEmbedding(reader, 24, staging=Staging(reader, DEVICE))
        one, other = some_ids(7, 1), some_ids(7, 2)
        ours.prefetch(one)
        assert same_bits(ours.rows(other), table(other))
        torch.cuda.synchronize()


def test_a_capture_without_a_warm_buffer_raises(tables) -> None:
    base, _ = tables
    with Reader(base / "tp1-0", 1) as reader:
        ours = DiskEmbedding(reader, 24, staging=Staging(reader, DEVICE))
        ids = some_ids(5, 0)
        with pytest.raises(NotWarmError, match="call warm"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            ours.rows(ids)
        torch.cuda.synchronize()


FAULT = """
import sys, torch, numpy as np
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.engram.torch_side.embedding import DiskEmbedding
from sparkyard_engine.engram.torch_side.staging import Staging
store, report, bad, stay = sys.argv[1], open(sys.argv[2], "w"), int(sys.argv[3]), sys.argv[4] == "stay"
reader = Reader(store, 1)
staging = Staging(reader, torch.device("cuda:0"), report=report.fileno(), exit_on_fault=not stay)
ours = DiskEmbedding(reader, 24, staging=staging)
ids = torch.full((2, 24), bad + 60, dtype=torch.int64, device="cuda")
ours.rows(ids)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = ours.rows(ids)
    token = torch.argmax(out.float().sum(-1), -1)
graph.replay()
torch.cuda.synchronize()
print("good", bool(torch.isfinite(out).any()), flush=True)
ids[1, 3] = bad
graph.replay()
torch.cuda.synchronize()
print("token", token.tolist(), bool(torch.isnan(out).all()), int(staging.failed[0]), flush=True)
"""


@pytest.mark.parametrize("stay", ["end", "stay"])
def test_a_read_error_in_a_replayed_graph_lets_no_token_out(tables, tmp_path, stay) -> None:
    base, _ = tables
    argv = ["--checkpoint", str(base / "checkpoint"), "--revision", "r", "--tp", "1", "--rank", "0"]
    assert pack.main([*argv, "--output", str(tmp_path / "s")]) == 0
    with (tmp_path / "s" / "layer-1.rows").open("r+b") as file:
        file.seek(3 * PAGE_BYTES + 100)
        file.write(b"rot")
    command = [sys.executable, "-c", FAULT, str(tmp_path / "s"), str(tmp_path / "report"), "31", stay]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=Path(__file__).parent
    )
    lines = run.stdout.splitlines()
    assert lines[0] == "good True", run.stderr
    report = json.loads((tmp_path / "report").read_text())
    assert (report["reason"], report["row"], report["page"], report["layer"]) == ("page_corrupt", 31, 3, 1)
    if stay == "end":
        assert run.returncode == 86
        assert len(lines) == 1  # nothing after the fault
    else:
        assert lines[1].endswith("True 4"), lines  # every value is NaN
