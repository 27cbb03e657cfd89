"""The torch side on the CPU, and our hash and layout against the serving engine's own classes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkyard_engine import ahead
from sparkyard_engine.embedding import Tables
from sparkyard_engine.engram import pack
from sparkyard_engine.engram.errors import ConfigError, StoreError
from sparkyard_engine.engram.hashing import Hasher, Layout, compress_tokenizer
from sparkyard_engine.engram.ownership import Ownership
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.engram.torch_side.dequant import dequantise_reference
from sparkyard_engine.engram.torch_side.embedding import Combine, DiskEmbedding
from sparkyard_engine.engram.torch_side.look_ahead import LookAhead
from tests.engine.packed import pack_ranks, same_bits
from tests.engram_checkpoint import TRUE_CONFIG, write_checkpoint

VOCAB = 211
LAYOUT = Layout.build(layer_ids=(1, 14), max_ngram_size=4, heads=8, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    base = tmp_path_factory.mktemp("torch")
    made = write_checkpoint(base / "checkpoint", LAYOUT, VOCAB)
    pack_ranks(base, ((1, 0), (3, 0), (3, 1), (3, 2)))
    return base, made


def in_memory(made, layer: int):
    """The serving engine's own embedding, one rank, table in memory."""
    engram = pytest.importorskip("sglang.srt.layers.engram")
    weight, scale = made[layer]
    table = engram.EngramEmbedding.__new__(engram.EngramEmbedding)
    torch.nn.Module.__init__(table)
    table.dim, table.tp_size, table.host_table, table.peer = 256, 1, None, None
    table.staged_by_scheduler, table._sort_host_reads = False, False
    table.row_start, table.rows = 0, len(weight)
    table.weight = torch.from_numpy(weight.copy()).view(torch.float8_e4m3fn)
    table.scale = torch.from_numpy(scale.copy()).view(torch.float8_e8m0fnu)
    return table


def test_every_byte_pair_decodes_as_the_formats_say() -> None:
    weight = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scale = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, 8)
    out = dequantise_reference(weight, scale, torch.arange(256, dtype=torch.int32), positive_zero=False)
    values = weight.view(torch.float8_e4m3fn).double()
    exact = values * 2.0 ** (torch.arange(256).double() - 127).unsqueeze(1)
    exact[255] = torch.nan
    assert same_bits(out, exact.to(torch.float32).to(torch.bfloat16))
    assert torch.isnan(out[255]).all()
    assert (torch.signbit(out) & (out == 0)).any()
    positive = dequantise_reference(weight, scale, torch.arange(256, dtype=torch.int32), positive_zero=True)
    assert not (torch.signbit(positive) & (positive == 0)).any()
    foreign = dequantise_reference(
        weight, scale, torch.full((3,), -1, dtype=torch.int32), positive_zero=False
    )
    assert (foreign.view(torch.int16) == 0).all()


@given(st.integers(0, 40), st.integers(0, 1 << 30), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=12)
def test_the_disk_embedding_equals_the_engine_own_on_one_rank(tables, tokens, seed, twice) -> None:
    base, made = tables
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, LAYOUT.table_rows[0], (tokens, 24)))
    if twice and tokens:
        ids = ids[torch.randint(0, tokens, (2 * tokens,), generator=torch.Generator().manual_seed(seed))]
    with Reader(base / "tp1-0", 1) as reader:
        ours = DiskEmbedding(reader, 24).rows(ids)
    assert ours.shape == (*ids.shape, 256)
    assert same_bits(ours, in_memory(made, 1)(ids))


@pytest.mark.parametrize("combine", Combine)
def test_three_ranks_together_equal_one_table(tables, combine) -> None:
    base, made = tables
    random = np.random.default_rng(7)
    bounds = np.asarray(LAYOUT.bounds(14))
    ids = torch.from_numpy(bounds[:-1] + random.integers(0, 1 << 40, (50, 24)) % np.diff(bounds))
    parts: list[torch.Tensor] = []
    whole: list[torch.Tensor] = []

    def keep(mine: torch.Tensor) -> torch.Tensor:
        parts.append(mine.clone())
        return mine if combine is Combine.SUM else mine.unsqueeze(0).repeat(3, 1, 1, 1)

    for rank in range(3):
        with Reader(base / f"tp3-{rank}", 14) as reader:
            DiskEmbedding(reader, 24, combine=combine, reduce=keep, gather=keep).rows(ids)
    with Reader(base / "tp3-0", 14) as reader:

        def together(_: torch.Tensor) -> torch.Tensor:
            return sum(parts[1:], parts[0]) if combine is Combine.SUM else torch.stack(parts)

        whole.append(DiskEmbedding(reader, 24, combine=combine, reduce=together, gather=together).rows(ids))
    table = in_memory(made, 14)(ids)
    assert same_bits(whole[0], torch.where(table == 0, torch.zeros_like(table), table))


def test_combinations_that_cannot_work_are_refused(tables, tmp_path) -> None:
    base, _ = tables
    argv = ["--checkpoint", str(base / "checkpoint"), "--revision", "r", "--tp", "3", "--rank", "0"]
    assert pack.main([*argv, "--ownership", str(Ownership.ROWS), "--output", str(tmp_path / "s")]) == 0
    with Reader(tmp_path / "s", 1) as reader:
        with pytest.raises(ConfigError, match="equal whole columns"):
            DiskEmbedding(reader, 24, combine=Combine.COLUMNS, gather=lambda mine: mine)
        with pytest.raises(ConfigError, match="needs a collective"):
            DiskEmbedding(reader, 24)


def test_look_ahead_fills_the_cache(tables) -> None:
    base, _ = tables
    ids = np.random.default_rng(1).integers(0, LAYOUT.table_rows[0], 3000)
    with Reader(base / "tp3-1", 1, cache_bytes=8 << 20) as reader:
        mine = np.unique(ids[reader.slice.owned(ids)])
        ahead = LookAhead(reader)
        assert ahead.begin(ids).result(timeout=60) == len(mine)
        before = reader.counters
        weight, scale = np.empty((3000, 256), np.uint8), np.empty((3000, 8), np.uint8)
        reader.read_owned(ids, weight, scale)
        after = reader.counters
        ahead.close()
    assert after.cache_hits - before.cache_hits >= 0.95 * len(mine)
    assert after.rows_unique - before.rows_unique == len(mine)


def engine_config(layout: Layout, vocab: int):
    return types.SimpleNamespace(
        engram_layer_ids=layout.layer_ids,
        engram_max_ngram_size=layout.max_ngram_size,
        engram_n_heads=layout.heads,
        engram_vocab_size=vocab,
        engram_num_embeddings=layout.table_rows,
        engram_head_dim=256,
    )


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=3, unique=True),
    st.integers(2, 5),
    st.integers(1, 5),
    st.integers(2, 5000),
)
@settings(derandomize=True, deadline=None, max_examples=40)
def test_layouts_equal_the_engine_own(layers, order, heads, vocab) -> None:
    engram = pytest.importorskip("sglang.srt.layers.engram")
    ours = Layout.build(layer_ids=layers, max_ngram_size=order, heads=heads, vocab_size=vocab)
    theirs = engram.EngramLayout.from_config(engine_config(ours, vocab))
    assert [tuple(p for size in layer for p in size) for layer in theirs.primes] == list(ours.primes)
    assert [theirs.column_bounds(place) for place in range(len(layers))] == [
        ours.bounds(layer) for layer in layers
    ]


def test_the_true_layout_and_its_ranges_equal_the_engine_own() -> None:
    engram = pytest.importorskip("sglang.srt.layers.engram")
    from sparkyard_engine.engram.ownership import slices

    ours = Layout.from_config(TRUE_CONFIG)
    theirs = engram.EngramLayout.from_config(engine_config(ours, 16_000_000))
    for place, layer in enumerate(ours.layer_ids):
        bounds = theirs.column_bounds(place)
        assert bounds == ours.bounds(layer)
        for tp in (1, 2, 3, 4, 6, 8, 12):
            shards = [engram.shard_range(bounds[-1], bounds, rank, tp) for rank in range(tp)]
            assert [part.ranges[0] for part in slices(Ownership.CONTIGUOUS, bounds, tp)] == shards
        for tp in (5, 7):
            shards = [engram.shard_range(bounds[-1], bounds, rank, tp) for rank in range(tp)]
            assert [part.ranges[0] for part in slices(Ownership.ROWS, bounds, tp)] == shards


@given(st.lists(st.integers(0, 59), min_size=1, max_size=30), st.integers(0, 59), st.integers(0, 1 << 30))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_row_ids_equal_the_engine_own(tokens, pad, seed) -> None:
    engram = pytest.importorskip("sglang.srt.layers.engram")
    token_map = np.random.default_rng(seed).integers(0, 41, 60)
    hasher = Hasher.build(LAYOUT, token_map, pad, 41)
    window, blocked = hasher.windows(np.asarray(tokens))
    theirs = engram.compute_engram_hash_ids(
        torch.from_numpy(window),
        torch.from_numpy(blocked),
        hasher.pad,
        torch.from_numpy(token_map),
        engram.compute_hash_multipliers(LAYOUT.layer_ids, 4, 41),
        torch.tensor(LAYOUT.primes).unflatten(1, (3, 8)),
        torch.tensor([LAYOUT.bounds(layer)[:-1] for layer in LAYOUT.layer_ids]),
    )
    assert (theirs.numpy() == hasher.row_ids(window, blocked)).all()


def small_tokenizer():
    """A byte-level tokenizer with words that normalise alike, lone spaces and broken bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [*pre_tokenizers.ByteLevel.alphabet(), "Ab", "ab", "AB", "Ġab", "Ã©", "Ã", "ĠĠ", "ĊĊ"]
    vocab = {piece: number for number, piece in enumerate(sorted(set(pieces)))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_the_token_map_equals_the_engine_own() -> None:
    engram = pytest.importorskip("sglang.srt.layers.engram")
    tokenizer = small_tokenizer()
    theirs, size = engram.build_compressed_token_map(tokenizer)
    assert size < len(tokenizer)
    assert compress_tokenizer(tokenizer, size).tolist() == theirs
    with pytest.raises(ConfigError, match="every row id would differ"):
        compress_tokenizer(tokenizer, size + 1)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=20), st.integers(0, 3))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_windows_with_image_tokens_equal_the_engine_own_hasher(tokens, position) -> None:
    engram = pytest.importorskip("sglang.srt.layers.engram")
    tokenizer = small_tokenizer()
    token_map, size = engram.build_compressed_token_map(tokenizer)
    layout = engram.EngramLayout.from_config(engine_config(LAYOUT, VOCAB))
    theirs = engram.EngramHasher(layout, tokenizer, 2, size)
    theirs.image_token_id = 7
    ours = Hasher.build(LAYOUT, np.asarray(token_map), 2, size, image_token=7)
    history = np.arange(position) + 3
    window, blocked = ours.windows(np.asarray(tokens), history=history, position=position)
    due, _ = theirs.hash_windows(torch.from_numpy(window), torch.from_numpy(blocked))
    assert (due.numpy() == ours.row_ids(window, blocked)).all()


KERNEL = """
import torch
from sparkyard_engine.engram.torch_side.dequant import dequantise_reference, launch_kernel
random = torch.Generator().manual_seed(3)
for count in (1, 5, 37):
    weight = torch.randint(0, 256, (40, 256), dtype=torch.uint8, generator=random)
    weight[(weight & 127) == 127] = 0
    scale = torch.randint(30, 230, (40, 8), dtype=torch.uint8, generator=random)
    scale[1] = 255
    index = torch.randint(-1, 40, (count,), dtype=torch.int32, generator=random)
    for positive_zero in (False, True):
        out = torch.full((count, 256), 7, dtype=torch.bfloat16)
        launch_kernel(weight, scale, index, out, positive_zero=positive_zero)
        due = dequantise_reference(weight, scale, index, positive_zero=positive_zero)
        nan = torch.isnan(due)
        assert (torch.isnan(out) == nan).all(), count
        assert (out[~nan].view(torch.int16) == due[~nan].view(torch.int16)).all(), count
"""


def test_the_kernel_equals_the_reference_in_the_interpreter() -> None:
    """Triton's own interpreter runs the kernel without a device. Its casts know no NaN of e4m3 and do not round
    subnormal numbers as a device does, so neither occurs here; the device tests take all 65,536 pairs."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", KERNEL], check=True, env=environment, cwd=Path(__file__).parent)


@pytest.mark.parametrize("combine", list(Combine))
def test_rows_read_aside_are_the_same_rows(tables, combine: Combine) -> None:
    """Prefetched, prefetched for another batch, prefetched twice, empty, and not at all: equal to the bit."""
    base, _ = tables
    random = np.random.default_rng(3)
    for rank in range(3):
        with Reader(base / f"tp3-{rank}", 1) as reader:

            def gather(mine: torch.Tensor) -> torch.Tensor:
                return torch.stack([mine, mine, mine])

            ways = {"reduce": lambda mine: mine} if combine is Combine.SUM else {"gather": gather}
            plain, aside = (DiskEmbedding(reader, 24, combine=combine, **ways) for _ in range(2))
            columns = LAYOUT.bounds(1)
            for turn in range(12):
                size = int(random.integers(0, 40))
                ids = torch.from_numpy(random.integers(columns[:-1], columns[1:], (size, 24)))
                both = torch.stack([ids, ids.flip(0)], 1)  # [T, layers, columns], as the hasher gives them
                wanted = plain.rows(both[:, 0])
                match turn % 4:
                    case 0:
                        aside.prefetch(both[:, 0])
                    case 1:
                        aside.prefetch(both[:, 1])
                    case 2:
                        aside.prefetch(both[:, 1])
                        aside.prefetch(both[:, 0])
                assert torch.equal(aside.rows(both[:, 0]).view(torch.int16), wanted.view(torch.int16))


def test_a_row_that_cannot_be_proven_raises_at_the_join(tables, tmp_path: Path) -> None:
    base, _ = tables
    store = tmp_path / "store"
    shutil.copytree(base / "tp1-0", store)
    with Reader(store, 1) as reader:
        embedding = DiskEmbedding(reader, 24)
        with (store / "layer-1.rows").open("r+b") as file:
            file.seek(4096 + 7)
            file.write(b"x")
        ids = torch.zeros((1, 24), dtype=torch.int64)
        embedding.prefetch(ids)
        with pytest.raises(StoreError):
            embedding.rows(ids)
        with pytest.raises(StoreError):
            embedding.rows(ids)


@given(st.lists(st.integers(0, 200), min_size=2, max_size=60), st.integers(0, 59), st.integers(1, 30))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_the_next_chunks_rows_are_those_that_its_own_step_will_ask_for(tokens, start, length) -> None:
    engram = pytest.importorskip("sglang.srt.layers.engram")
    hasher = engine_hasher(engram)
    start = start % (len(tokens) - 1)
    end = min(start + length, len(tokens))
    ours = Hasher.build(LAYOUT, np.arange(VOCAB), 2, VOCAB)  # only its windows are asked for
    window, blocked = ours.windows(np.asarray(tokens))
    due, _ = hasher.hash_windows(torch.from_numpy(window), torch.from_numpy(blocked))
    found = ahead.next_ids(hasher, tokens, start, end)
    last = min(end + end - start, len(tokens))
    assert len(found) == last - end
    if last > end:
        assert (found == due.numpy()[end:last]).all()


def engine_hasher(engram):
    """The engine's own, over a small tokenizer."""
    tokenizer = small_tokenizer()
    _, size = engram.build_compressed_token_map(tokenizer)
    return engram.EngramHasher(
        engram.EngramLayout.from_config(engine_config(LAYOUT, VOCAB)), tokenizer, 2, size
    )


def test_looking_ahead_fills_the_cache_and_changes_no_row(tables) -> None:
    """The scheduler's real request and batch modes; the step itself is not run."""
    engram = pytest.importorskip("sglang.srt.layers.engram")
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.sampling.sampling_params import SamplingParams

    base, _ = tables
    prompt = np.random.default_rng(5).integers(0, 200, 400).tolist()
    req = Req("r", "", prompt, SamplingParams())
    req.full_untruncated_fill_ids = array("q", prompt)
    req.prefix_len, req.extend_end = 100, 200
    with Reader(base / "tp3-0", 1, cache_bytes=8 << 20) as warm, Reader(base / "tp3-0", 1) as cold:
        known = Tables(None)
        known.readers[1] = warm
        hasher = engine_hasher(engram)
        around = ahead.scheduled(known, LAYOUT.layer_ids)
        batch = types.SimpleNamespace(chunked_req=req, forward_mode=ForwardMode.EXTEND)
        assert around(lambda *_: "result", None, batch) == "result"
        assert warm.counters.rows_requested == 0  # no hasher was seen yet
        known.hasher = hasher
        around(lambda *_: "result", None, batch)
        ids = torch.from_numpy(ahead.next_ids(hasher, prompt, 100, 200)[:, 0])
        mine = len(np.unique(ids.numpy()[warm.slice.owned(ids.numpy())]))
        deadline_s = time.monotonic() + 60
        while warm.counters.rows_unique < mine and time.monotonic() < deadline_s:
            time.sleep(0.01)
        before = warm.counters.cache_hits
        one, other = (
            DiskEmbedding(reader, 24, reduce=lambda mine: mine).rows(ids) for reader in (warm, cold)
        )
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))
        assert warm.counters.cache_hits - before >= 0.95 * mine
        for idle in (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY):
            seen = warm.counters.rows_requested
            around(lambda *_: None, None, types.SimpleNamespace(chunked_req=req, forward_mode=idle))
            assert warm.counters.rows_requested == seen
