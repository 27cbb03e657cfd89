"""Padded heads over three ranks against the unpadded attention, as the checkpoint stores it. Needs torch only.

On a GPU: `SPARKYARD_TEST_DEVICE=cuda python -m pytest tests/engine/test_padding_numerics.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
import torch

from sparkyard_engine.padding import Placement, Plan, apply, place, rules

DEVICE = os.environ.get("SPARKYARD_TEST_DEVICE", "cpu")
HEADS, GROUPS, TP, BLOCK = 64, 8, 3, 32
TOKENS, KEYS = 16, 96
SEEDS = 8 if DEVICE == "cpu" else 3


@dataclass(frozen=True)
class Dims:
    """head_dim, q_lora_rank, o_lora_rank, hidden of the model."""

    head: int
    q_lora: int
    o_lora: int
    hidden: int


SMALL = Dims(64, 128, 64, 640)
REAL = Dims(512, 1280, 1024, 5120)
DIMS = [pytest.param(SMALL, id="small")]
if DEVICE != "cpu":
    DIMS.append(pytest.param(REAL, id="real"))


def weights(dims: Dims, fp8: bool) -> dict[str, torch.Tensor]:
    """One layer's attention tensors under their checkpoint names; FP8 E4M3 with a ue8m0 scale per 32x32 block."""
    shapes = {
        "wq_b": (HEADS * dims.head, dims.q_lora),
        "wo_a": (GROUPS * dims.o_lora, HEADS // GROUPS * dims.head),
        "wo_b": (dims.hidden, GROUPS * dims.o_lora),
    }
    made: dict[str, torch.Tensor] = {"attn_sink": torch.randn(HEADS, device=DEVICE)}
    for name, shape in shapes.items():
        weight = torch.randn(shape, device=DEVICE) * shape[1] ** -0.5
        if not fp8:
            made[f"{name}.weight"] = weight
            continue
        blocks = weight.view(shape[0] // BLOCK, BLOCK, shape[1] // BLOCK, BLOCK)
        exponent = torch.ceil(torch.log2(blocks.abs().amax(dim=(1, 3)) / 448))
        scaled = blocks / torch.exp2(exponent)[:, None, :, None]
        made[f"{name}.weight"] = scaled.reshape(shape).to(torch.float8_e4m3fn)
        made[f"{name}.scale"] = (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
    return {f"layers.3.attn.{name}": tensor for name, tensor in made.items()}


def dense(made: dict[str, torch.Tensor], name: str, dtype: torch.dtype) -> torch.Tensor:
    weight = made[f"layers.3.attn.{name}.weight"]
    scale = made.get(f"layers.3.attn.{name}.scale")
    if scale is None:
        return weight.to(dtype)
    wide = scale.to(torch.float32).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return (weight.to(torch.float32) * wide).to(dtype)


def attention(
    made: dict[str, torch.Tensor],
    dims: Dims,
    slots: range,
    inputs: tuple[torch.Tensor, torch.Tensor],
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Each slot's part of the output [TOKENS, hidden]: shared latent keys, a sink per head, grouped output projection.

    One group after the other, so that the arithmetic of a group does not depend on how many its rank has.
    """
    latent, keys = (tensor.to(dtype) for tensor in inputs)
    sink = made["layers.3.attn.attn_sink"].to(dtype)
    wide = {name: dense(made, name, dtype) for name in ("wq_b", "wo_a", "wo_b")}
    heads = HEADS // GROUPS
    parts = []
    for slot in slots:
        rows_q, rows_o = heads * dims.head, dims.o_lora
        wq_b = wide["wq_b"][slot * rows_q : (slot + 1) * rows_q]
        wo_a = wide["wo_a"][slot * rows_o : (slot + 1) * rows_o]
        wo_b = wide["wo_b"][:, slot * rows_o : (slot + 1) * rows_o]
        query = (latent @ wq_b.T).view(TOKENS, heads, dims.head)
        score = torch.einsum("thd,sd->ths", query, keys) * dims.head**-0.5
        sinks = sink[slot * heads : (slot + 1) * heads].view(1, heads, 1).expand(TOKENS, heads, 1)
        share = torch.cat([score, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        out = torch.einsum("ths,sd->thd", share, keys).reshape(TOKENS, -1)
        parts.append(out @ wo_a.T @ wo_b.T)
    return parts


def total(parts: list[torch.Tensor]) -> torch.Tensor:
    """Added up in their order, as a rank adds its groups and the all-reduce its ranks."""
    result = torch.zeros_like(parts[0])
    for part in parts:
        result = result + part
    return result


def padded(made: dict[str, torch.Tensor], placement: Placement) -> dict[str, torch.Tensor]:
    plan = Plan(rules(), placement)
    result = {}
    for name, tensor in made.items():
        rule = plan.pads(name)
        assert rule is not None
        result[name] = apply(name, tensor, rule, placement)
        assert result[name].dtype == tensor.dtype
    return result


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("fp8", [False, True], ids=["fp32", "fp8"])
@pytest.mark.parametrize(("heads", "groups"), [(96, 12), (72, 9)])
def test_padded_ranks_sum_to_the_unpadded_output(dims: Dims, fp8: bool, heads: int, groups: int) -> None:
    """Padding adds exact zeros; what is left is the order of the sum, and three short sums err less than a long one."""
    placement = place(heads=HEADS, groups=GROUPS, padded_heads=heads, padded_groups=groups, tp=TP)
    per_rank = groups // TP
    errors = {"three ranks": 0.0, "one rank": 0.0}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        made = weights(dims, fp8)
        inputs = (
            torch.randn(TOKENS, dims.q_lora, device=DEVICE),
            torch.randn(KEYS, dims.head, device=DEVICE),
        )
        wide = padded(made, placement)

        def slots(rank: int) -> range:
            return range(rank * per_rank, (rank + 1) * per_rank)

        exact = total(attention(made, dims, range(GROUPS), inputs, torch.float64))
        ranks64 = total(
            [total(attention(wide, dims, slots(rank), inputs, torch.float64)) for rank in range(TP)]
        )
        assert torch.isfinite(ranks64).all()
        assert float((ranks64 - exact).abs().max()) < 1e-12

        one = attention(made, dims, range(GROUPS), inputs, torch.float32)
        three = [attention(wide, dims, slots(rank), inputs, torch.float32) for rank in range(TP)]
        # to the bit: a slot is its group, or nothing at all
        for slot, part in enumerate(part for rank in three for part in rank):
            group = placement.slots[slot]
            assert torch.equal(part, torch.zeros_like(part) if group is None else one[group])
        errors["three ranks"] += float(
            (total([total(parts) for parts in three]).double() - exact).pow(2).sum()
        )
        errors["one rank"] += float((total(one).double() - exact).pow(2).sum())
    assert 0 < errors["three ranks"] <= errors["one rank"]


@pytest.mark.parametrize("dims", DIMS)
def test_padding_contributes_exact_zeros(dims: Dims) -> None:
    torch.manual_seed(8)
    made = weights(dims, fp8=True)
    placement = place(heads=HEADS, groups=GROUPS, padded_heads=96, padded_groups=12, tp=TP)
    wide = padded(made, placement)
    per_group = dims.o_lora
    for slot, group in enumerate(placement.slots):
        columns = dense(wide, "wo_b", torch.float32)[:, slot * per_group : (slot + 1) * per_group]
        rows = dense(wide, "wo_a", torch.float32)[slot * per_group : (slot + 1) * per_group]
        assert bool((columns == 0).all()) == (group is None)
        assert bool((rows == 0).all()) == (group is None)
    scales = wide["layers.3.attn.wo_b.scale"].view(torch.uint8)
    assert int(scales.min()) > 0
    assert int(scales.max()) < 255
    sink = wide["layers.3.attn.attn_sink"]
    assert int(torch.isinf(sink).sum()) == 32


def test_a_tensor_of_another_shape_is_refused() -> None:
    placement = place(heads=HEADS, groups=GROUPS, padded_heads=96, padded_groups=12, tp=TP)
    plan = Plan(rules(), placement)
    name = "layers.0.attn.wq_b.weight"
    rule = plan.pads(name)
    assert rule is not None
    with pytest.raises(Exception, match=r"layers\.0\.attn\.wq_b\.weight: axis 0 has 100 entries"):
        apply(name, torch.zeros(100, 4), rule, placement)
