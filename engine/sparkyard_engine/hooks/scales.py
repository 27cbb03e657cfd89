"""Repairs block scales that cannot be encoded, where their block is all zeros.

SGLang 0.5.23 serves 32x32 FP8 blocks as MXFP8 only if every scale is a positive power of two; one scale that is not
sends the whole layer to the Triton kernel, three times slower. Where a block holds nothing but zeros, any scale gives
the same product, so 1.0 is put there. Other invalid scales are left: they are damage, and SGLang's warning stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkyard_engine.drift import Symbol

SYMBOL = Symbol(
    "sglang.srt.layers.quantization.fp8.Fp8LinearMethod._prepare_block_fp8_as_mxfp8", ("self", "layer")
)
SIGN = 0x7F  # zero in E4M3 is 0x00 or 0x80
MANTISSA = 0x7FFFFF  # of float32: zero for a power of two


def repair(weight: Any, scale: Any, block: tuple[int, int]) -> int:
    """Put 1.0 in place of invalid entries of `scale` float32[N/bn, K/bk] over all-zero blocks of `weight` E4M3[N, K].

    Returns how many were repaired.
    """
    import torch

    bits = scale.contiguous().view(torch.int32)
    invalid = ((bits & MANTISSA) != 0) | ~(scale > 0) | ~torch.isfinite(scale)
    if not bool(invalid.any()):
        return 0
    rows, columns = block
    zero = (weight.view(torch.uint8) & SIGN) == 0
    padded = torch.ones(scale.shape[0] * rows, scale.shape[1] * columns, dtype=torch.bool, device=zero.device)
    padded[: zero.shape[0], : zero.shape[1]] = zero
    empty = padded.view(scale.shape[0], rows, scale.shape[1], columns).all(dim=3).all(dim=1)
    chosen = invalid & empty
    scale[chosen] = 1.0
    return int(chosen.sum())


def around(value: Any) -> Callable[..., Any]:
    """Runs before SGLang encodes the layer's scales."""
    del value

    def prepare(original: Callable[..., Any], self: Any, layer: Any) -> Any:
        rows, columns = self.weight_block_size
        repair(layer.weight.data, layer.weight_scale_inv.data, (rows, columns))
        return original(self, layer)

    return prepare
