"""The padding plan: where groups go, which tensors are padded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkyard_engine.padding import Padder, PaddingError, Plan, place, rule_of, rules


def test_three_ranks_each_hold_real_heads() -> None:
    placed = place(heads=64, groups=8, padded_heads=96, padded_groups=12, tp=3)
    assert placed.slots == (0, 1, None, None, 2, 3, 4, None, 5, 6, 7, None)
    assert [placed.of_rank(rank) for rank in range(3)] == [
        (0, 1, None, None),
        (2, 3, 4, None),
        (5, 6, 7, None),
    ]
    assert place(heads=64, groups=8, padded_heads=72, padded_groups=9, tp=3).slots == (
        *(0, 1, None),
        *(2, 3, 4),
        *(5, 6, 7),
    )


def test_four_ranks_need_nothing() -> None:
    placed = place(heads=64, groups=8, padded_heads=64, padded_groups=8, tp=4)
    assert not placed.is_padded
    assert Plan(rules(), placed).pads("layers.0.attn.wq_b.weight") is None


@pytest.mark.parametrize(("padded_heads", "padded_groups", "tp"), [(96, 8, 3), (80, 10, 3), (48, 6, 3)])
def test_shapes_that_would_cut_a_group_are_refused(padded_heads: int, padded_groups: int, tp: int) -> None:
    with pytest.raises(PaddingError):
        place(heads=64, groups=8, padded_heads=padded_heads, padded_groups=padded_groups, tp=tp)


@given(groups=st.integers(1, 16), extra=st.integers(0, 8), tp=st.integers(1, 8), per_group=st.integers(1, 8))
@settings(max_examples=200, derandomize=True)
def test_every_real_group_has_exactly_one_slot(groups: int, extra: int, tp: int, per_group: int) -> None:
    padded = -(-(groups + extra) // tp) * tp
    placed = place(
        heads=groups * per_group,
        groups=groups,
        padded_heads=padded * per_group,
        padded_groups=padded,
        tp=tp,
    )
    assert [slot for slot in placed.slots if slot is not None] == list(range(groups))
    assert len(placed.slots) == padded
    real = [sum(slot is not None for slot in placed.of_rank(rank)) for rank in range(tp)]
    assert max(real) - min(real) <= 1


def test_only_the_main_attention_is_padded_also_in_the_draft() -> None:
    plan = Plan(rules(), place(heads=64, groups=8, padded_heads=96, padded_groups=12, tp=3))
    padded = [
        f"{stage}.attn.{tensor}"
        for stage in ("layers.0", "layers.39", "mtp.2")
        for tensor in (
            *("wq_b.weight", "wq_b.scale", "wo_a.weight", "wo_a.scale"),
            *("wo_b.weight", "wo_b.scale", "attn_sink"),
        )
    ]
    left = [
        "layers.2.attn.indexer.wq_b.weight",
        "layers.0.attn.wq_a.weight",
        "vision.blocks.0.attn.wo.weight",
    ]
    assert all(plan.pads(name) is not None for name in padded)
    assert not [name for name in left if plan.pads(name) is not None]


def test_each_name_is_meant_by_one_rule() -> None:
    known = rules()
    for name in ("layers.1.ffn.experts.383.w2.scale", "mtp.0.main_proj.scale", "embed.weight", "hc_head_fn"):
        assert sum(rule.pattern.fullmatch(name) is not None for rule in known) == 1
        assert rule_of(known, name) is not None


def test_a_checkpoint_without_the_padded_tensors_is_refused() -> None:
    plan = Plan(rules(), place(heads=64, groups=8, padded_heads=96, padded_groups=12, tp=3))
    padder = Padder(plan)
    assert next(iter(padder.stream([("norm.weight", object())])))[0] == "norm.weight"
    with pytest.raises(PaddingError, match="padded nothing"):
        padder.check(40)
