"""The lab's decoder: V4.1's outline from SGLang's own layers, and SGLang's own Engram module, unchanged.

As in V4.1: low-rank queries, one key/value head that is both key and value, output projected group by group,
a sink per head, several residual streams, Engram before the attention of some layers, checkpoint names. Left
out: sparse attention, experts, the mixing of the streams. ``attn_sink`` here only gates a head's output,
because the attention backend of a CPU has no sinks: it shows that the tensor is padded and sliced, not that
V4.1's sink mathematics is right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.engram import Engram, EngramHasher, EngramLayout
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.runtime_context import get_parallel
from torch import Tensor, nn

from sparkyard_engine import plugin, rankspec

MERGED = {"w1": 0, "w3": 1}  # checkpoint name → part of the merged projection


class LabEngram(Engram):
    """SGLang's Engram, for models that do not compute in bfloat16.

    The rows arrive as bfloat16 whatever the model's type is, and the projection refuses a mixture at the
    first request.
    """

    def embed_rows(self, hash_ids: Tensor, forward_batch: ForwardBatch | None, cp_all_tokens: bool) -> Tensor:
        """Rows of ``hash_ids`` int64[T, columns] as [T, columns, 256] in the type of the projection."""
        return super().embed_rows(hash_ids, forward_batch, cp_all_tokens).to(self.wkv.weight.dtype)


class LabAttention(nn.Module):
    """[T, hidden] → [T, hidden]. Heads and groups of this rank are a slice of the padded ones."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        ranks, rank = get_parallel().tp_size, get_parallel().tp_rank
        heads, groups = config.num_attention_heads, config.o_groups
        if heads % ranks or groups % ranks or heads % groups:
            raise ValueError(
                f"{heads} heads in {groups} output groups do not divide by {ranks} ranks: give padded shapes with "
                "--json-model-override-args"
            )
        self.heads, self.groups, self.width = heads // ranks, groups // ranks, config.head_dim
        self.mine = slice(rank * self.heads, (rank + 1) * self.heads)
        self.o_rank = config.o_lora_rank
        eps = config.rms_norm_eps
        self.wq_a = ReplicatedLinear(config.hidden_size, config.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(config.q_lora_rank, eps=eps)
        self.wq_b = ColumnParallelLinear(config.q_lora_rank, heads * self.width, bias=False)
        self.wkv = ReplicatedLinear(config.hidden_size, self.width, bias=False)
        self.kv_norm = RMSNorm(self.width, eps=eps)
        self.wo_a = ColumnParallelLinear(heads // groups * self.width, groups * self.o_rank, bias=False)
        self.wo_b = RowParallelLinear(groups * self.o_rank, config.hidden_size, bias=False)
        self.attn_sink = nn.Parameter(torch.empty(heads, dtype=torch.float32), requires_grad=False)
        self.rope = get_rope(
            self.width,
            rotary_dim=self.width,
            max_position=config.max_position_embeddings,
            base=int(config.rope_parameters["rope_theta"]),  # where transformers 5 puts `rope_theta`
        )
        self.attention = RadixAttention(
            self.heads, self.width, self.width**-0.5, num_kv_heads=1, layer_id=layer
        )

    def forward(self, hidden: Tensor, positions: Tensor, forward_batch: ForwardBatch) -> Tensor:
        """One step for the tokens of a batch."""
        query, _ = self.wq_b(self.q_norm(self.wq_a(hidden)[0]))
        value = self.kv_norm(self.wkv(hidden)[0])
        query, key = self.rope(positions, query, value.clone())  # it may turn its arguments in place
        out = self.attention(query, key, value, forward_batch).view(-1, self.heads, self.width)
        out = out * torch.sigmoid(self.attn_sink[self.mine]).to(out.dtype).unsqueeze(-1)
        grouped = out.reshape(out.shape[0], self.groups, -1)
        weight = self.wo_a.weight.view(self.groups, self.o_rank, -1)
        low_rank = torch.einsum("tgd,grd->tgr", grouped, weight).flatten(1)
        result: Tensor = self.wo_b(low_rank)[0]
        return result


class LabFeedForward(nn.Module):
    """[T, hidden] → [T, hidden]."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.w13 = MergedColumnParallelLinear(config.hidden_size, [inner] * 2, bias=False)
        self.w2 = RowParallelLinear(inner, config.hidden_size, bias=False)
        self.activation = SiluAndMul()

    def forward(self, hidden: Tensor) -> Tensor:
        """Gated feed-forward."""
        result: Tensor = self.w2(self.activation(self.w13(hidden)[0]))[0]
        return result


class LabLayer(nn.Module):
    """[T, streams, hidden] → the same. Engram, attention and feed-forward add to the streams."""

    def __init__(self, config: Any, layer: int, layout: EngramLayout) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.engram = LabEngram(config, layer, layout) if layer in layout.layer_ids else None
        self.attn_norm = RMSNorm(config.hidden_size, eps=eps)
        self.attn = LabAttention(config, layer)
        self.ffn_norm = RMSNorm(config.hidden_size, eps=eps)
        self.ffn = LabFeedForward(config)

    def forward(
        self, streams: Tensor, input_ids: Tensor, positions: Tensor, hashes: Tensor, batch: ForwardBatch
    ) -> Tensor:
        """``hashes`` int64[T, Engram layers, columns]: row ids of all tables."""
        if self.engram is not None:
            rows = hashes[:, self.engram.layer_hash_index]
            streams = self.engram(streams, rows, batch, input_ids=input_ids)
        mixed = self.attn(self.attn_norm(streams.mean(1)), positions, batch)
        streams = streams + mixed.unsqueeze(1)
        return streams + self.ffn(self.ffn_norm(streams.mean(1))).unsqueeze(1)


class LabV41ForCausalLM(nn.Module):
    """The whole model. Parameters carry the checkpoint's names, apart from the merged ``w1`` and ``w3``."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        del quant_config, prefix  # the checkpoint is not quantised, apart from its Engram tables
        self.config = config
        layout = EngramLayout.from_config(config)
        self.streams = config.hc_mult
        self.embed = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        # SGLang finds the one hasher of the model by its class and feeds it the look-back of every request.
        self.hasher = EngramHasher.from_config(config, layout)
        self.layers = nn.ModuleList(
            LabLayer(config, layer, layout) for layer in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.head = ParallelLMHead(config.vocab_size, config.hidden_size)
        self.logits_processor = LogitsProcessor(config)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: ForwardBatch,
        input_embeds: Tensor | None = None,
    ) -> LogitsProcessorOutput:
        """Token ids int64[T] of a batch → logits, as SGLang's model runner expects them."""
        hashes = self.hasher(input_ids, forward_batch)
        embedded = self.embed(input_ids) if input_embeds is None else input_embeds
        streams = embedded.unsqueeze(1).repeat(1, self.streams, 1)
        for layer in self.layers:
            streams = layer(streams, input_ids, positions, hashes, forward_batch)
        hidden = self.norm(streams.mean(1))
        return self.logits_processor(input_ids, hidden, self.head, forward_batch)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Loads every tensor of the checkpoint. Raises ValueError when one is unknown or one is missing.

        A table that is read from disk has no parameters: its tensors pass by unread. Raises RuntimeError when
        a rank spec was given and the plug-in is not at work: SGLang only logs that, and would serve the stock
        table.
        """
        if rankspec.SPEC_VARIABLE in os.environ and plugin.active is None:
            raise RuntimeError(f"{rankspec.SPEC_VARIABLE} is set but the sparkyard plug-in is not active")
        parameters = dict(self.named_parameters())
        missing = {
            (name, part) for name in parameters for part in (MERGED.values() if ".w13." in name else (None,))
        }
        for name, tensor in weights:
            target, part = _target(name)
            parameter = parameters.get(target)
            if parameter is None:
                if ".engram.embed." in name:
                    continue
                raise ValueError(f"{name}: no parameter of the lab's model has this name")
            loader = getattr(parameter, "weight_loader", default_weight_loader)
            if part is None:
                loader(parameter, tensor)
            else:
                loader(parameter, tensor, part)
            missing.discard((target, part))
        if missing:
            raise ValueError(f"the checkpoint lacks {sorted(name for name, _ in missing)[:5]}")
        for layer in self.layers:
            if layer.engram is not None:
                layer.engram.embed.finish_load(label="lab")


def _target(name: str) -> tuple[str, int | None]:
    """Parameter of a checkpoint tensor, and which part of it where parts are merged."""
    owner, _, kind = name.removesuffix(".weight").rpartition(".")
    if kind in MERGED and owner.endswith(".ffn"):
        return f"{owner}.w13.weight", MERGED[kind]
    return name, None


EntryClass = LabV41ForCausalLM
