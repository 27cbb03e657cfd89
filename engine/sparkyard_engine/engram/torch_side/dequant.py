"""Staged rows → bf16: value = e4m3 × 2^(e − 127), rounded once. A Triton kernel and the torch code it must equal.

e8m0 (OCP microscaling formats, section 5.4.1): byte e is 2^(e − 127), 0 included (2⁻¹²⁷, a subnormal float32), and 255
is NaN. An index of −1 is a row of another rank and decodes to +0. With `positive_zero` a stored −0 comes out as +0, as
it does from a sum over ranks; without, signs stay, as they do in a table that one rank holds whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch

from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES

VALUES_PER_SCALE: Final = WEIGHT_BYTES // SCALE_BYTES
# Rows and warps of one program. Few rows: a decode-sized batch still fills the multiprocessors; more: each thread moves
# 16 bytes at a time. Chosen from all of 1 … 32 rows × 1 … 8 warps on an H200 (docs/engram-store.md).
LARGE_ROWS, LARGE_WARPS = 8, 4
SMALL_ROWS, SMALL_WARPS = 2, 4
SMALL_BATCH: Final = 2048


def dequantise_reference(
    weight: torch.Tensor, scale: torch.Tensor, index: torch.Tensor, *, positive_zero: bool
) -> torch.Tensor:
    """weight uint8[n, 256], scale uint8[n, 8], index int32[m] → bf16[m, 256]."""
    foreign = index < 0
    place = index.clamp_min(0).long()
    out = torch.zeros((len(index), WEIGHT_BYTES), dtype=torch.bfloat16, device=weight.device)
    if len(weight) == 0 or len(index) == 0:
        return out
    values = weight[place].view(torch.float8_e4m3fn).float().unflatten(1, (SCALE_BYTES, VALUES_PER_SCALE))
    exponent = scale[place].int()
    factor = (exponent << 23).view(torch.float32)
    factor = torch.where(exponent == 0, torch.full_like(factor, 2.0**-127), factor)
    factor = torch.where(exponent == 255, torch.full_like(factor, torch.nan), factor)
    out.copy_((values * factor.unsqueeze(2)).flatten(1))
    if positive_zero:  # after the rounding, which makes zeros of its own
        out.masked_fill_(out == 0, 0)
    return out.masked_fill_(foreign.unsqueeze(1), 0)


@cache
def _kernel() -> Any:
    """The Triton kernel, made on first use: a machine without Triton still has the reference."""
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def gather(  # type: ignore[no-untyped-def]
        weight,
        scale,
        index,
        out,
        count,
        WIDTH: tl.constexpr,  # noqa: N803
        SCALES: tl.constexpr,  # noqa: N803
        ROWS: tl.constexpr,  # noqa: N803
        POSITIVE_ZERO: tl.constexpr,  # noqa: N803
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        inside = row < count
        place = tl.load(index + row, mask=inside, other=-1)
        owned = place >= 0
        place = tl.where(owned, place, 0).to(tl.int64)
        # One scale for 32 values: loaded once and spread, not once a value.
        group = tl.arange(0, SCALES)
        mask = owned[:, None]
        exponent = tl.load(scale + place[:, None] * SCALES + group[None, :], mask=mask, other=127).to(
            tl.int32
        )
        factor = (exponent << 23).to(tl.float32, bitcast=True)
        factor = tl.where(exponent == 0, 2.0**-127, factor)
        factor = tl.where(exponent == 255, float("nan"), factor)
        column = group[None, :, None] * (WIDTH // SCALES) + tl.arange(0, WIDTH // SCALES)[None, None, :]
        raw = tl.load(weight + (place * WIDTH)[:, None, None] + column, mask=mask[:, :, None], other=0)
        values = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        result = (values * factor[:, :, None]).to(tl.bfloat16)
        if POSITIVE_ZERO:  # after the rounding, which makes zeros of its own
            result = tl.where(result == 0, tl.zeros_like(result), result)
        target = out + (row.to(tl.int64) * WIDTH)[:, None, None] + column
        tl.store(target, result, mask=inside[:, None, None])

    return gather


def dequantise(
    weight: torch.Tensor, scale: torch.Tensor, index: torch.Tensor, out: torch.Tensor, *, positive_zero: bool
) -> None:
    """As `dequantise_reference`, into out bf16[m, 256]; on a CUDA device by the Triton kernel on the current stream.

    On integrated devices weight, scale and index may be pinned host memory seen through its device address.
    """
    if out.is_cuda:
        launch_kernel(weight, scale, index, out, positive_zero=positive_zero)
    else:
        out.copy_(dequantise_reference(weight, scale, index, positive_zero=positive_zero))


def launch_kernel(
    weight: torch.Tensor, scale: torch.Tensor, index: torch.Tensor, out: torch.Tensor, *, positive_zero: bool
) -> None:
    """The Triton kernel, whatever the tensors lie on."""
    count = len(index)
    if count == 0:
        return
    rows, warps = (SMALL_ROWS, SMALL_WARPS) if count <= SMALL_BATCH else (LARGE_ROWS, LARGE_WARPS)
    _kernel()[(-(-count // rows),)](
        weight,
        scale,
        index,
        out,
        count,
        WIDTH=WEIGHT_BYTES,
        SCALES=SCALE_BYTES,
        ROWS=rows,
        POSITIVE_ZERO=positive_zero,
        num_warps=warps,
    )
