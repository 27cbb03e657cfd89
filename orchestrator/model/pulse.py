"""Signs of life of a deployment on one node: what the agent's request `pulse` answers (docs/formats.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from orchestrator.model.facts import Desired, LeaseFacts, Phase
from orchestrator.model.frozen import Frozen

Short = Annotated[str, StringConstraints(max_length=4096)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
RANKS_MAX = 64


class RankPulse(Frozen):
    """One rank that has a folder on the node, alive or not."""

    generation: int = Field(ge=0)
    rank: int = Field(ge=0)
    guarded: bool
    processes: int = Field(ge=0)
    stopped: int = Field(ge=0)
    processor_s: Seconds
    """Processor seconds of all its processes; falls when one of them ends."""
    phase: Phase
    ended: Short = ""
    ended_by_guard: bool = False
    updated_unix_s: Seconds | None = None
    last_log_unix_s: Seconds | None = None
    floor_bytes: int | None = None


class BootPulse(Frozen):
    """One boot record; proven: canary and smoke went through."""

    generation: int = Field(ge=0)
    proven: bool


class EnginePulse(Frozen):
    """Rank 0's readiness and metrics page, reduced."""

    ready: bool
    gauges: dict[Short, float] = Field(default_factory=dict, max_length=64)
    counters: dict[Short, float] = Field(default_factory=dict, max_length=64)
    ttft_bounds_s: tuple[float, ...] = Field(default=(), max_length=128)
    ttft: tuple[float, ...] = Field(default=(), max_length=129)
    error: Short = ""


class Pulse(Frozen):
    """One node at one moment."""

    now_unix_s: Seconds
    monotonic_s: Seconds
    boot_id: Short
    available_bytes: int = Field(ge=0)
    pressure_full: Seconds | None = None
    desired: Desired | None = None
    lease: LeaseFacts | None = None
    boots: tuple[BootPulse, ...] = Field(default=(), max_length=RANKS_MAX)
    ranks: tuple[RankPulse, ...] = Field(default=(), max_length=RANKS_MAX)
    engine: EnginePulse | None = None


class CanaryAnswer(Frozen):
    """What the request `canary` answers."""

    text: Short
    right: bool | None = None
    seconds: Seconds
