"""A checkpoint with the names, dtypes and block scales of DeepSeek-V4.1 in small dimensions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

BLOCK = 32


@dataclass(frozen=True)
class Dims:
    """Small sizes with the divisibility problem of V4.1: 4 heads in 2 groups over 3 ranks."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    groups: int = 2
    head_dim: int = 128
    q_lora: int = 64
    o_lora: int = 64
    experts: int = 6
    expert_inner: int = 96
    vocabulary: int = 512
    drafts: int = 1


def tensors(dims: Dims, *, fp8: bool) -> dict[str, torch.Tensor]:
    """Names as in the checkpoint. FP8 with ue8m0 block scales, or bfloat16 without."""
    made: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weight = torch.randn(rows, columns) * columns**-0.5
        if not fp8:
            made[f"{name}.weight"] = weight.to(torch.bfloat16)
            return
        made[f"{name}.weight"] = weight.to(torch.float8_e4m3fn)
        codes = torch.randint(118, 130, (rows // BLOCK, columns // BLOCK), dtype=torch.uint8)
        made[f"{name}.scale"] = codes.view(torch.float8_e8m0fnu)

    def vector(name: str, size: int) -> None:
        made[name] = torch.randn(size).to(torch.bfloat16)

    made["embed.weight"] = torch.randn(dims.vocabulary, dims.hidden).to(torch.bfloat16)
    made["head.weight"] = torch.randn(dims.vocabulary, dims.hidden).to(torch.bfloat16)
    vector("norm.weight", dims.hidden)
    stages = [f"layers.{n}" for n in range(dims.layers)] + [f"mtp.{n}" for n in range(dims.drafts)]
    for stage in stages:
        attn = f"{stage}.attn"
        linear(f"{attn}.wq_a", dims.q_lora, dims.hidden)
        linear(f"{attn}.wkv", dims.head_dim, dims.hidden)
        linear(f"{attn}.wq_b", dims.heads * dims.head_dim, dims.q_lora)
        linear(f"{attn}.wo_a", dims.groups * dims.o_lora, dims.heads // dims.groups * dims.head_dim)
        linear(f"{attn}.wo_b", dims.hidden, dims.groups * dims.o_lora)
        made[f"{attn}.attn_sink"] = torch.randn(dims.heads)
        for name, size in (
            (f"{attn}.q_norm.weight", dims.q_lora),
            (f"{attn}.kv_norm.weight", dims.head_dim),
            (f"{stage}.attn_norm.weight", dims.hidden),
            (f"{stage}.ffn_norm.weight", dims.hidden),
        ):
            vector(name, size)
        made[f"{stage}.ffn.gate.weight"] = torch.randn(dims.experts, dims.hidden).to(torch.bfloat16)
        made[f"{stage}.ffn.gate.bias"] = torch.randn(dims.experts)
        for expert in [f"experts.{number}" for number in range(dims.experts)] + ["shared_experts"]:
            name = f"{stage}.ffn.{expert}"
            linear(f"{name}.w1", dims.expert_inner, dims.hidden)
            linear(f"{name}.w2", dims.hidden, dims.expert_inner)
            linear(f"{name}.w3", dims.expert_inner, dims.hidden)
        for place in ("attn", "ffn"):
            made[f"{stage}.hc_{place}_fn"] = torch.randn(24, 4 * dims.hidden)
            made[f"{stage}.hc_{place}_base"] = torch.randn(24)
            made[f"{stage}.hc_{place}_scale"] = torch.randn(3)
    return made


def write(folder: Path, dims: Dims, made: dict[str, torch.Tensor], config: dict[str, object]) -> None:
    """Two shards, the index, config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(made)
    shards = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for shard, part in shards.items():
        save_file({name: made[name].contiguous() for name in part}, folder / shard)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in made.values())},
        "weight_map": {name: shard for shard, part in shards.items() for name in part},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    shape = {"num_attention_heads": dims.heads, "o_groups": dims.groups}
    (folder / "config.json").write_text(json.dumps(shape | config))


def config(dims: Dims) -> dict[str, object]:
    """`config.json` for SGLang's own class: V4.1's keys, small values. No Engram, no compressed layers, no vision."""
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "vocab_size": dims.vocabulary,
        "hidden_size": dims.hidden,
        "intermediate_size": dims.hidden,
        "moe_intermediate_size": dims.expert_inner,
        "num_hidden_layers": dims.layers,
        "num_key_value_heads": 1,
        "head_dim": dims.head_dim,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": dims.head_dim,
        "kv_lora_rank": dims.head_dim,
        "q_lora_rank": dims.q_lora,
        "o_lora_rank": dims.o_lora,
        "n_routed_experts": dims.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "compress_rope_theta": 40000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 1024,
        },
        "max_position_embeddings": 4096,
        "compress_ratios": [0] * dims.layers,
        "kv_source_layer_ids": [],
        "index_source_layer_ids": [],
        "candidate_source_layer_id": -1,
        "index_head_dim": 64,
        "index_n_heads": 4,
        "index_topk": 64,
        "window_size": 128,
        "sliding_window": 128,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 4,
        "hc_eps": 1e-6,
        "num_hash_layers": 0,
        "num_nextn_predict_layers": 0,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
    }
