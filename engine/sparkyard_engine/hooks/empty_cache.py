"""Gives unused device memory back after the chunks of a long prefill: the allocator fragments otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkyard_engine.drift import Symbol

SYMBOL = Symbol(
    "sglang.srt.model_executor.model_runner.ModelRunner.forward",
    (
        *("self", "forward_batch", "skip_attn_backend_init", "pp_proxy_tensors"),
        *("reinit_attn_backend", "split_forward_count"),
    ),
)
ALSO = (
    Symbol(
        "sglang.srt.model_executor.forward_batch_info.ForwardMode.is_extend_without_speculative", ("self",)
    ),
)


def is_long_prefill(forward_batch: Any, least_tokens: int) -> bool:
    """Whether the batch is a prefill step of a sequence at least this long. Reads host values only."""
    lengths = forward_batch.seq_lens_cpu
    return (
        forward_batch.forward_mode.is_extend_without_speculative()
        and lengths is not None
        and len(lengths) > 0
        and int(lengths.max()) >= least_tokens
    )


def around(value: Any) -> Callable[..., Any]:
    """`value` is the least length in tokens."""
    import torch

    least_tokens = int(value)

    def forward(original: Callable[..., Any], self: Any, forward_batch: Any, *rest: Any, **named: Any) -> Any:
        result = original(self, forward_batch, *rest, **named)
        if torch.cuda.is_available() and is_long_prefill(forward_batch, least_tokens):
            torch.cuda.empty_cache()
        return result

    return forward
