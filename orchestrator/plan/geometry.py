"""DeepSeek-V4.1-Flash as published: the tensors whose shapes can be cited. Pure.

The ledger uses it when no checkpoint is at hand; with one, it reads the real headers instead. Names and shapes follow
from the published configuration and from the parameter shapes and loader names of SGLang 0.5.23
(`srt/models/deepseek_v4.py`, `deepseek_v4_dspark.py`, `srt/layers/engram.py`, `attention/dsv4/dsv41_sparse.py`).
What cannot be cited (vision above all) is the difference to the published total, one line of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.plan.tensors import Tensor

TOTAL_BYTES = 510_286_023_000
"""Sum of all tensors at revision fb2764a5, as published with the 48 shards."""
TENSORS = 96_085
"""Tensors in all, as published."""
SHARDS = 48
BLOCK = 32
"""Dense weights: FP8 E4M3 with one ue8m0 scale per 32x32 block (published quantisation)."""
MXFP4_GROUP = 32
"""Experts: FP4 packed two to a byte, one scale per 32 values."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Keys of the published `config.json` that give shapes."""

    layers: int = 40
    hidden: int = 5120
    heads: int = 64
    head_dim: int = 512
    rope_dim: int = 64
    q_lora: int = 1280
    o_groups: int = 8
    o_lora: int = 1024
    vocabulary: int = 129_280
    experts: int = 384
    expert_inner: int = 2304
    positions: int = 1_048_576
    hyper: int = 4
    kv_sources: tuple[int, ...] = (2, 8, 14, 20)
    kv_ratio_one: tuple[int, ...] = (20,)
    """compress_ratios: 2 for layers 2 to 19, 1 for layers 20 to 39."""
    index_sources: tuple[int, ...] = (2, 8, 14, 20, 24, 28, 32, 36)
    index_heads: int = 32
    index_dim: int = 128
    draft_blocks: int = 3
    draft_experts: int = 128
    draft_targets: int = 3
    markov_rank: int = 256
    engram_rows: tuple[tuple[int, int], ...] = ((1, 384_006_168), (14, 384_016_682))
    engram_columns: int = 24
    engram_dim: int = 256


@dataclass(frozen=True, slots=True)
class Cited:
    """A tensor, the shard it lies in, and where its shape is from."""

    tensor: Tensor
    shard: int
    source: str


CONFIG = "published config.json"
TABLE = "published tensor table"
PARAMETER = "parameter shape in SGLang 0.5.23, sizes from the published config.json"


def cited(model: Geometry = Geometry()) -> Iterator[Cited]:
    """Every tensor whose shape can be cited, in the order of the shards (1-based, published layout)."""
    yield Cited(Tensor("embed.weight", "BF16", (model.vocabulary, model.hidden)), 2, CONFIG)
    for layer in range(model.layers):
        shard = 3 + layer
        yield from _attention(model, f"layers.{layer}", shard)
        yield from _experts(model, f"layers.{layer}", shard, model.experts)
        yield from _small(model, f"layers.{layer}", shard, model.experts)
        yield from _compressor(model, layer, shard)
    yield Cited(Tensor("head.weight", "BF16", (model.vocabulary, model.hidden)), 43, CONFIG)
    yield Cited(Tensor("norm.weight", "BF16", (model.hidden,)), 43, CONFIG)
    for block in range(model.draft_blocks):
        shard = 44 + block
        yield from _attention(model, f"mtp.{block}", shard)
        yield from _experts(model, f"mtp.{block}", shard, model.draft_experts)
        yield from _small(model, f"mtp.{block}", shard, model.draft_experts)
    yield from _draft(model)
    for index, (layer, rows) in enumerate(model.engram_rows):
        yield from _engram(model, layer, rows, 47 + index)


def _fp8(name: str, rows: int, columns: int, shard: int, source: str) -> Iterator[Cited]:
    yield Cited(Tensor(f"{name}.weight", "F8_E4M3", (rows, columns)), shard, source)
    yield Cited(Tensor(f"{name}.scale", "F8_E8M0", (rows // BLOCK, columns // BLOCK)), shard, source)


def _bf16(name: str, shape: tuple[int, ...], shard: int) -> Cited:
    return Cited(Tensor(name, "BF16", shape), shard, PARAMETER)


def _f32(name: str, shape: tuple[int, ...], shard: int) -> Cited:
    return Cited(Tensor(name, "F32", shape), shard, PARAMETER)


def _attention(model: Geometry, stage: str, shard: int) -> Iterator[Cited]:
    attn, per_group = f"{stage}.attn", model.heads // model.o_groups * model.head_dim
    yield from _fp8(f"{attn}.wq_a", model.q_lora, model.hidden, shard, CONFIG)
    yield from _fp8(f"{attn}.wkv", model.head_dim, model.hidden, shard, CONFIG)
    yield from _fp8(f"{attn}.wq_b", model.heads * model.head_dim, model.q_lora, shard, CONFIG)
    yield from _fp8(f"{attn}.wo_a", model.o_groups * model.o_lora, per_group, shard, TABLE)
    yield from _fp8(f"{attn}.wo_b", model.hidden, model.o_groups * model.o_lora, shard, CONFIG)
    yield _f32(f"{attn}.attn_sink", (model.heads,), shard)
    yield _bf16(f"{attn}.q_norm.weight", (model.q_lora,), shard)
    yield _bf16(f"{attn}.kv_norm.weight", (model.head_dim,), shard)


def _experts(model: Geometry, stage: str, shard: int, count: int) -> Iterator[Cited]:
    inner, hidden = model.expert_inner, model.hidden
    for expert in range(count):
        name = f"{stage}.ffn.experts.{expert}"
        for part, rows, columns in (("w1", inner, hidden), ("w2", hidden, inner), ("w3", inner, hidden)):
            yield Cited(Tensor(f"{name}.{part}.weight", "I8", (rows, columns // 2)), shard, TABLE)
            yield Cited(
                Tensor(f"{name}.{part}.scale", "F8_E8M0", (rows, columns // MXFP4_GROUP)), shard, TABLE
            )
    shared = f"{stage}.ffn.shared_experts"
    yield from _fp8(f"{shared}.w1", inner, hidden, shard, CONFIG)
    yield from _fp8(f"{shared}.w2", hidden, inner, shard, CONFIG)
    yield from _fp8(f"{shared}.w3", inner, hidden, shard, CONFIG)


def _small(model: Geometry, stage: str, shard: int, experts: int) -> Iterator[Cited]:
    yield _bf16(f"{stage}.ffn.gate.weight", (experts, model.hidden), shard)
    yield _f32(f"{stage}.ffn.gate.bias", (experts,), shard)
    yield _bf16(f"{stage}.attn_norm.weight", (model.hidden,), shard)
    yield _bf16(f"{stage}.ffn_norm.weight", (model.hidden,), shard)
    mixes = (2 + model.hyper) * model.hyper
    for place in ("attn", "ffn"):
        yield _f32(f"{stage}.hc_{place}_fn", (mixes, model.hyper * model.hidden), shard)
        yield _f32(f"{stage}.hc_{place}_base", (mixes,), shard)
        yield _f32(f"{stage}.hc_{place}_scale", (3,), shard)


def _compressor(model: Geometry, layer: int, shard: int) -> Iterator[Cited]:
    attn = f"layers.{layer}.attn"
    if layer in model.kv_sources:
        yield _bf16(f"{attn}.compressor.wkv.weight", (model.head_dim, model.hidden), shard)
        if layer not in model.kv_ratio_one:
            yield _bf16(f"{attn}.compressor.wgate.weight", (model.head_dim, model.hidden), shard)
        yield _bf16(f"{attn}.compressor.norm.weight", (model.head_dim,), shard)
        yield _bf16(f"{attn}.indexer.wk.weight", (model.index_dim, model.head_dim), shard)
        yield _bf16(f"{attn}.indexer.k_norm.weight", (model.index_dim,), shard)
    if layer in model.index_sources:
        rows = model.index_heads * model.index_dim
        yield from _fp8(f"{attn}.indexer.wq_b", rows, model.q_lora, shard, PARAMETER)
        yield _bf16(f"{attn}.indexer.weights_proj.weight", (model.index_heads, model.hidden), shard)


def _draft(model: Geometry) -> Iterator[Cited]:
    first, last = 44, 43 + model.draft_blocks
    yield from _fp8("mtp.0.main_proj", model.hidden, model.hidden * model.draft_targets, first, PARAMETER)
    yield _bf16("mtp.0.main_norm.weight", (model.hidden,), first)
    end = f"mtp.{model.draft_blocks - 1}"
    yield _bf16(f"{end}.norm.weight", (model.hidden,), last)
    for part in ("embed", "head"):
        yield _bf16(f"{end}.markov_head.{part}.weight", (model.vocabulary, model.markov_rank), last)


def _engram(model: Geometry, layer: int, rows: int, shard: int) -> Iterator[Cited]:
    engram, inputs = f"layers.{layer}.engram", model.engram_columns * model.engram_dim
    yield Cited(Tensor(f"{engram}.embed.weight", "F8_E4M3", (rows, model.engram_dim)), shard, TABLE)
    yield Cited(Tensor(f"{engram}.embed.scale", "F8_E8M0", (rows, model.engram_dim // BLOCK)), shard, TABLE)
    yield from _fp8(f"{engram}.wkv", (model.hyper + 1) * model.hidden, inputs, shard, TABLE)
    yield Cited(Tensor(f"{engram}.q_weight", "BF16", (model.hyper, model.hidden)), shard, TABLE)
    yield Cited(Tensor(f"{engram}.k_weight", "BF16", (model.hyper, model.hidden)), shard, TABLE)
