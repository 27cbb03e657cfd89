"""What happens during a run, for live views."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.bench.record import Measure, PromptKind, Row


@dataclass(frozen=True, slots=True)
class CellBegan:
    """A row is being measured."""

    measure: Measure
    kind: PromptKind
    streams: int
    tokens: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Events received so far in the present round."""

    events: int
    at_s: float


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """One round of the present row; 0 is the warm-up."""

    number: int
    figures: dict[str, float]
    errors: int


@dataclass(frozen=True, slots=True)
class CellEnded:
    """A row is done."""

    row: Row


@dataclass(frozen=True, slots=True)
class Remarked:
    """Something that a reader of the figures must know."""

    text: str


BenchEvent = CellBegan | Ticked | RoundEnded | CellEnded | Remarked
