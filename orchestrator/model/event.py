"""What happened. Every view is a fold over these; `events.jsonl` holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.model.step import Failure


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A verb began."""

    verb: str
    profile: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """Facts were read."""

    answered: tuple[str, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage began; `steps` and `waits` are (node, what, why)."""

    title: str
    steps: tuple[tuple[str, str, str], ...]
    waits: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Long work moved on; `total` 0 when unknown."""

    node: str
    what: str
    done: int
    total: int
    unit: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step succeeded."""

    node: str
    what: str
    seconds: float
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step failed on its node."""

    node: str
    what: str
    seconds: float
    failure: Failure


@dataclass(frozen=True, slots=True)
class WaitDone:
    """A condition holds."""

    node: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PredictionMissed:
    """Facts after a stage differ from `predict`."""

    node: str
    field: str
    predicted: str
    observed: str


@dataclass(frozen=True, slots=True)
class Said:
    """A line for the person, level `note` or `warning`."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A verb ended."""

    verb: str
    exit_code: int
    seconds: float
    failures: tuple[Failure, ...]


Event = (
    RunStarted
    | Looked
    | StageStarted
    | Progress
    | StepDone
    | StepFailed
    | WaitDone
    | PredictionMissed
    | Said
    | RunEnded
)

KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        RunStarted,
        Looked,
        StageStarted,
        Progress,
        StepDone,
        StepFailed,
        WaitDone,
        PredictionMissed,
        Said,
        RunEnded,
    )
}


def to_json(event: Event, unix_s: float) -> dict[str, Any]:
    """One line of `events.jsonl`."""
    return {"schema": "sparkyard/event/v1", "unix_s": unix_s, "event": type(event).__name__, **asdict(event)}
