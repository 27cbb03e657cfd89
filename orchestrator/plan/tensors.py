"""What the tensors of a checkpoint become in one rank's memory. Pure; the rules are data (docs/formats.md)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

RULES_SCHEMA = "sparkyard/tensor-rules/v1"
VOCABULARY_QUANTUM = 64  # SGLang pads the vocabulary to a multiple of 64, and of the ranks
BLOCK_RESIDENT_BYTES = 4 + 32  # one scale byte becomes float32, plus 32 row scales of the swizzled MXFP8 copy
DTYPE_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("F8_E4M3", "F8_E8M0", "F8_E5M2", "I8", "U8", "BOOL"), 1),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64"), 8),
}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the header of its shard describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many entries."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes in the checkpoint. Raises KeyError for a dtype that safetensors does not have."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind of tensor is split and stored."""

    pattern: re.Pattern[str]
    part: str
    split: str
    pad: int | None
    resident: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What padding does to the head axis: real groups and slots, and the ranks."""

    groups: int
    slots: int
    tp: int


@dataclass(frozen=True, slots=True)
class Resident:
    """One part of the weights in one rank."""

    part: str
    bytes: int
    stored_bytes: int
    """Bytes of the same tensors in the whole checkpoint."""
    replicated: bool
    """Every rank has all of it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of one rank, and what could not be placed."""

    parts: tuple[Resident, ...]
    unknown: tuple[Kind, ...]
    indivisible: tuple[str, ...]
    """Tensors that the ranks do not divide, each with its sizes."""

    @property
    def unknown_bytes(self) -> int:
        """Bytes of the tensors that no rule knows."""
        return sum(kind.bytes for kind in self.unknown)

    @property
    def listed_bytes(self) -> int:
        """Bytes of every tensor that was given, in the checkpoint."""
        return sum(part.stored_bytes for part in self.parts) + self.unknown_bytes


def parse_rules(value: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Rules from their JSON. Raises ValueError when the schema is another one."""
    if value.get("schema") != RULES_SCHEMA:
        raise ValueError(f"tensor rules: expected {RULES_SCHEMA!r}, found {value.get('schema')!r}")
    return tuple(
        Rule(re.compile(rule["name"]), rule["part"], rule["split"], rule["pad"], rule["resident"])
        for rule in value["rules"]
    )


@dataclass(frozen=True, slots=True)
class Kind:
    """Tensors that differ in nothing but the numbers in their names; 96,000 names are some 130 kinds."""

    example: Tensor
    count: int

    @property
    def bytes(self) -> int:
        """Bytes of all of them in the checkpoint."""
        return self.example.bytes * self.count


def kinds(tensors: Iterable[Tensor]) -> tuple[Kind, ...]:
    """The tensors by kind, in the order of their first sight."""
    found: dict[tuple[str, str, tuple[int, ...]], tuple[Tensor, int]] = {}
    for tensor in tensors:
        key = (_NUMBER.sub("0", tensor.name), tensor.dtype, tensor.shape)
        example, count = found.get(key, (tensor, 0))
        found[key] = (example, count + 1)
    return tuple(Kind(example, count) for example, count in found.values())


def weights(
    tensors: Iterable[Kind], rules: tuple[Rule, ...], shape: Shape, *, tables_in_memory: bool
) -> Weights:
    """What one rank holds. All ranks hold the same amount: padding makes every split even."""
    resident: dict[str, int] = defaultdict(int)
    stored: dict[str, int] = defaultdict(int)
    replicated: dict[str, bool] = {}
    unknown: list[Kind] = []
    indivisible: list[str] = []
    for kind in tensors:
        tensor = kind.example
        rule = next((rule for rule in rules if rule.pattern.fullmatch(tensor.name)), None)
        if rule is None:
            unknown.append(kind)
            continue
        local, problem = _elements_of_rank(tensor, rule, shape, tables_in_memory=tables_in_memory)
        if problem:
            indivisible.append(f"{tensor.name}: {problem}")
        held = _resident_bytes(tensor, rule, local, tables_in_memory=tables_in_memory)
        stored[rule.part] += kind.bytes
        resident[rule.part] += held * kind.count
        replicated[rule.part] = replicated.get(rule.part, True) and rule.split == "none"
    parts = tuple(Resident(part, resident[part], stored[part], replicated[part]) for part in stored)
    return Weights(parts, tuple(unknown), tuple(indivisible))


def _elements_of_rank(
    tensor: Tensor, rule: Rule, shape: Shape, *, tables_in_memory: bool
) -> tuple[int, str | None]:
    sizes = list(tensor.shape)
    if rule.pad is not None:
        if sizes[rule.pad] % shape.groups:
            return (
                tensor.elements,
                f"axis {rule.pad} has {sizes[rule.pad]} entries, not {shape.groups} groups",
            )
        sizes[rule.pad] = sizes[rule.pad] // shape.groups * shape.slots
    match rule.split:
        case "none":
            return prod(sizes), None
        case "never":
            return (-(-tensor.elements // shape.tp) if tables_in_memory else 0), None
        case "vocabulary":
            quantum = lcm(VOCABULARY_QUANTUM, shape.tp)
            sizes[0] = -(-sizes[0] // quantum) * quantum
            return prod(sizes) // shape.tp, None
        case _:
            axis = 0 if rule.split == "rows" else 1
            problem = None
            if sizes[axis] % shape.tp:
                problem = f"axis {axis} has {sizes[axis]} entries, not divisible by {shape.tp} ranks"
            return prod(sizes) // shape.tp, problem


def _resident_bytes(tensor: Tensor, rule: Rule, local: int, *, tables_in_memory: bool) -> int:
    match rule.resident:
        case "bfloat16":
            return local * 2
        case "float32":
            return local * 4
        case "block_scale":
            return local * BLOCK_RESIDENT_BYTES
        case "nothing":
            return local if tables_in_memory and rule.split == "never" else 0
        case _:
            return local * DTYPE_BYTES[tensor.dtype]
