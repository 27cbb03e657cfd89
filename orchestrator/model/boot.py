"""The record of a boot as the node keeps it (docs/formats.md): measured beside predicted, and what brings it back."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from orchestrator.model.facts import Digest, Phase, Text
from orchestrator.model.frozen import Frozen

LINES_MAX = 64


class Measured(Frozen):
    """What the node saw. None: not known."""

    model_config = ConfigDict(extra="ignore")

    memory_before_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_low_water_bytes: int | None = None
    memory_free_low_water_bytes: int | None = None
    weights_bytes: int | None = None
    graphs_bytes: int | None = None
    kv_tokens: int | None = None
    kv_tokens_asked: int | None = None
    engram_bytes_read: int | None = None
    engine_bytes_read: dict[str, int] | None = None
    """By the rank's own processes: `disk`, and through all `calls`, caches included."""
    node_bytes_read: dict[str, int] | None = None
    """By the whole node meanwhile: `disk` and `nfs`."""


class Brought(Frozen):
    """Everything that a controller needs to start the same again."""

    profile: dict[str, Any]
    """The whole profile."""
    package: Digest
    """The engine package."""
    package_bytes: int = Field(ge=0)
    image: Text = ""
    """Content label of the image; empty with the runtime `process`."""


class BootRecord(Frozen):
    """One proven boot on one node."""

    model_config = ConfigDict(extra="ignore")

    deployment: Text
    generation: int = Field(ge=0)
    rank: int = Field(ge=0)
    profile: Text
    proven: bool
    started_unix_s: float = 0.0
    ready_unix_s: float | None = None
    recorded_unix_s: float = 0.0
    timeline: dict[Phase, float] = Field(default_factory=dict)
    measured: Measured = Measured()
    predicted: dict[str, int] = Field(default_factory=dict, max_length=LINES_MAX)
    """Bytes by line of the memory ledger."""
    versions: dict[str, Any] = Field(default_factory=dict)
    goal: Brought | None = None
