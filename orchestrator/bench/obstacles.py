"""In what two rows must agree before they are ranked, and what stands between them if they do not. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.bench.record import (
    Cache,
    Figure,
    Measure,
    PromptKind,
    Record,
    Row,
    Speculation,
    format_name,
)

LEADING = {
    Measure.DECODE: "decode_tok_s",
    Measure.PREFILL: "prefill_tok_s",
    Measure.NEEDLE: "found",
    Measure.CHAT_BEHIND_PREFILL: "ttft_behind_ms",
    Measure.AGENT_CHAIN: "ttft_p50_ms",
}
"""The figure by which rows of a measure are ranked."""

CONTEXT_RATIO = (
    1.25  # prompts are sized by characters: the same target comes out up to some 20 % apart between models
)


class Dimension(StrEnum):
    """In what two rows must agree before they are ranked."""

    MODEL = "model"
    FORMAT = "format"
    CONTEXT = "context"
    PROMPT_KIND = "prompt-kind"
    SPECULATION = "speculation"
    HARDWARE = "hardware"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why two rows may not be ranked."""

    dimension: Dimension
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of one record."""

    record: Record
    row: Row

    @property
    def figure(self) -> Figure | None:
        """The figure by which the row is ranked."""
        return self.row.figure(LEADING[self.row.measure])


def obstacles(one: Entry, other: Entry) -> tuple[Reason, ...]:
    """Everything that forbids ranking these two rows; empty when they may be ranked."""
    found = (rule(one, other) for rule in _RULES)
    return tuple(reason for reason in found if reason is not None)


def ratio(one: float, other: float) -> float:
    """How many times the larger is the smaller; infinite beside zero."""
    low, high = sorted((one, other))
    return high / low if low > 0 else float("inf")


def _model(one: Entry, other: Entry) -> Reason | None:
    names = [entry.record.provenance.model for entry in (one, other)]
    short = [name.rsplit("/", 1)[-1].lower() if name else None for name in names]
    return _unlike(Dimension.MODEL, one, other, short[0], short[1])


def _format(one: Entry, other: Entry) -> Reason | None:
    names = [entry.record.provenance.quantisation for entry in (one, other)]
    plain = [format_name(name) if name else None for name in names]
    return _unlike(Dimension.FORMAT, one, other, plain[0], plain[1])


def _context(one: Entry, other: Entry) -> Reason | None:
    lengths = (one.row.prompt_tokens, other.row.prompt_tokens)
    if None in lengths or ratio(*lengths) <= CONTEXT_RATIO:  # type: ignore[arg-type]
        return None
    return Reason(Dimension.CONTEXT, f"{lengths[0]:,} against {lengths[1]:,} prompt tokens")


def _kind(one: Entry, other: Entry) -> Reason | None:
    kinds = {one.row.kind, other.row.kind}
    if PromptKind.UNSTATED in kinds:
        return Reason(Dimension.PROMPT_KIND, "the prompt kind is not stated")
    if len(kinds) == 1:
        return None
    if PromptKind.FILLER in kinds:
        real = next(kind for kind in (one.row.kind, other.row.kind) if kind is not PromptKind.FILLER)
        return Reason(
            Dimension.PROMPT_KIND,
            f"repeated-token filler against real text ({real}): filler reads one Engram row again and again, "
            "which overstates prefill by 9 to 20 %",
        )
    return Reason(Dimension.PROMPT_KIND, f"{one.row.kind} against {other.row.kind} prompts")


def _speculation(one: Entry, other: Entry) -> Reason | None:
    said = [_speculation_name(entry.record.provenance.speculation) for entry in (one, other)]
    return _unlike(Dimension.SPECULATION, one, other, said[0], said[1])


def _hardware(one: Entry, other: Entry) -> Reason | None:
    said = [
        " + ".join(f"{part.count} × {part.name}" for part in entry.record.provenance.hardware) or None
        for entry in (one, other)
    ]
    return _unlike(Dimension.HARDWARE, one, other, said[0], said[1])


def _cache(one: Entry, other: Entry) -> Reason | None:
    states = (one.row.cache, other.row.cache)
    if Cache.UNSTATED in states or states[0] is states[1]:
        return None
    return Reason(Dimension.CACHE, f"{states[0]} against {states[1]} prefix cache")


_RULES: tuple[Callable[[Entry, Entry], Reason | None], ...] = (
    _model,
    _format,
    _context,
    _kind,
    _speculation,
    _hardware,
    _cache,
)


def _unlike(
    dimension: Dimension, one: Entry, other: Entry, mine: str | None, theirs: str | None
) -> Reason | None:
    if mine is None or theirs is None:
        silent = one if mine is None else other
        return Reason(dimension, f"{silent.record.name} does not state its {dimension}")
    return None if mine == theirs else Reason(dimension, f"{mine} against {theirs}")


def _speculation_name(value: Speculation | str | None) -> str | None:
    if isinstance(value, Speculation):
        block = f" block {value.block_size}" if value.block_size is not None else ""
        return f"{value.algorithm.lower()}{block}"
    return value
