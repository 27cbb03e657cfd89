"""Which part of a checkpoint tensor goes where, when the ranks do not divide the model's heads.

DeepSeek-V4.1 has 64 heads in 8 output groups. For three ranks the shapes become 96 heads in 12 groups, and the four
padding groups are spread: every rank gets real groups first and padding after them. Moving whole groups is exact,
because attention works head by head, `wo_a` group by group, and `wo_b` sums over groups. With the padding at the tail,
the last rank would hold nothing but zeros.

The names and axes are in `data/deepseek-v4.1.json` (format `sparkyard/tensor-rules/v1`), which the controller's memory
ledger reads too. This module plans; only `apply` touches tensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

RULES_SCHEMA = "sparkyard/tensor-rules/v1"
RULES_FILE = "deepseek-v4.1.json"
ONE_E8M0 = 127  # 2**(127 - 127): the scale 1.0; anything invalid makes the MXFP8 re-encoder reject the layer


class PaddingError(Exception):
    """The weights or the shapes are not what the plan was made for; the text names the tensor."""


class Fill(StrEnum):
    """What padding consists of."""

    ZERO = "zero"
    ONE_E8M0 = "one_e8m0"
    MINUS_INFINITY = "minus_infinity"  # a sink that takes no attention

    @property
    def number(self) -> float:
        """What each padding element is filled with, in the dtype it is stored in (F8_E8M0 as its byte)."""
        match self:
            case Fill.ZERO:
                return 0
            case Fill.ONE_E8M0:
                return ONE_E8M0
            case Fill.MINUS_INFINITY:
                return float("-inf")


@dataclass(frozen=True, slots=True)
class Rule:
    """How tensors of one kind are split over the ranks and padded. Axes count from 0, None is unpadded."""

    pattern: re.Pattern[str]
    split: str
    pad_axis: int | None
    fill: Fill | None
    whole_at_load: bool = False
    """The engine loads all of it on every rank and splits it later."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which real group stands in each padded slot; None is padding. Slots are in the order of the ranks."""

    real_groups: int
    slots: tuple[int | None, ...]
    tp: int

    @property
    def is_padded(self) -> bool:
        """Whether there is anything to do."""
        return self.slots != tuple(range(self.real_groups))

    def of_rank(self, rank: int) -> tuple[int | None, ...]:
        """The slots of one rank."""
        per_rank = len(self.slots) // self.tp
        return self.slots[rank * per_rank : (rank + 1) * per_rank]


def place(*, heads: int, groups: int, padded_heads: int, padded_groups: int, tp: int) -> Placement:
    """Spread the real groups over the ranks as evenly as possible, in their order.

    Raises PaddingError when a group would be cut, or the padded shapes do not divide by `tp`.
    """
    if heads % groups or padded_heads * groups != padded_groups * heads:
        raise PaddingError(
            f"{padded_heads} heads in {padded_groups} groups: a group must keep its {heads // groups} heads"
        )
    if padded_groups % tp:
        raise PaddingError(f"{padded_groups} groups do not divide by {tp} ranks")
    if padded_groups < groups:
        raise PaddingError(f"{padded_groups} groups cannot hold the model's {groups}")
    per_rank = padded_groups // tp
    slots: list[int | None] = []
    for rank in range(tp):
        real = range(rank * groups // tp, (rank + 1) * groups // tp)
        slots += [*real, *[None] * (per_rank - len(real))]
    return Placement(groups, tuple(slots), tp)


@dataclass(frozen=True, slots=True)
class Plan:
    """The padding of a whole checkpoint: its rules, and where the groups go."""

    rules: tuple[Rule, ...]
    placement: Placement

    def pads(self, name: str) -> Rule | None:
        """The rule of a tensor that is padded; None for every other name. Names are those of the checkpoint."""
        if not self.placement.is_padded:
            return None
        found = rule_of(self.rules, name)
        return found if found is not None and found.pad_axis is not None else None

    def identity(self) -> Mapping[str, Any]:
        """What distinguishes this plan from others, as JSON."""
        return {"slots": list(self.placement.slots), "tp": self.placement.tp}


def rules() -> tuple[Rule, ...]:
    """The rules of DeepSeek-V4.1 that ship with this package."""
    text = resources.files("sparkyard_engine").joinpath("data", RULES_FILE).read_text("utf-8")
    return parse_rules(json.loads(text))


def parse_rules(value: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Rules from their JSON. Raises PaddingError when the schema is another one."""
    if value.get("schema") != RULES_SCHEMA:
        raise PaddingError(f"tensor rules: expected {RULES_SCHEMA!r}, found {value.get('schema')!r}")
    return tuple(
        Rule(
            re.compile(rule["name"]),
            rule["split"],
            rule["pad"],
            Fill(rule["fill"]) if rule["pad"] is not None else None,
            rule.get("whole_at_load", False),
        )
        for rule in value["rules"]
    )


def rule_of(known: Iterable[Rule], name: str) -> Rule | None:
    """The first rule whose pattern is the whole name."""
    return next((rule for rule in known if rule.pattern.fullmatch(name)), None)


def apply(name: str, tensor: Any, rule: Rule, placement: Placement) -> Any:
    """`tensor` (any dtype, the checkpoint's shape) with its groups in their slots; a new tensor of the padded shape.

    Raises PaddingError when the padded axis does not consist of whole groups.
    """
    import torch

    axis = rule.pad_axis
    if axis is None or rule.fill is None:
        return tensor
    size = tensor.shape[axis]
    if size % placement.real_groups:
        raise PaddingError(
            f"{name}: axis {axis} has {size} entries, not a multiple of {placement.real_groups} groups"
        )
    unit = size // placement.real_groups
    shape = list(tensor.shape)
    shape[axis] = unit * len(placement.slots)
    # bytes: float8 types have no fill and no cat on every device
    source = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    padded = torch.full(shape, rule.fill.number, dtype=source.dtype, device=source.device)
    for slot, group in enumerate(placement.slots):
        if group is not None:
            padded.narrow(axis, slot * unit, unit).copy_(source.narrow(axis, group * unit, unit))
    return padded.view(tensor.dtype)


class Padder:
    """Pads a stream of checkpoint tensors and counts what it padded."""

    def __init__(self, plan: Plan) -> None:
        """`padded` counts by the name's last two parts, for example `wo_b.scale`."""
        self._plan = plan
        self.padded: dict[str, int] = {}

    @property
    def count(self) -> int:
        """Tensors padded so far."""
        return sum(self.padded.values())

    def stream(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The same tensors under the same names, padded where the plan says so; one in memory at a time."""
        for name, tensor in weights:
            rule = self._plan.pads(name)
            if rule is None:
                yield name, tensor
                continue
            kind = ".".join(name.split(".")[-2:])
            self.padded[kind] = self.padded.get(kind, 0) + 1
            yield name, apply(name, tensor, rule, self._plan.placement)

    def check(self, layers: int) -> None:
        """Every layer must have had each padded tensor. Raises PaddingError: serving half-padded heads is worse."""
        if not self._plan.placement.is_padded:
            return
        wrong = {kind: count for kind, count in self.padded.items() if count != layers}
        if wrong or not self.padded:
            raise PaddingError(f"padded {wrong or 'nothing'}, expected each kind {layers} times")
