"""The rank's status file (format `sparkyard/rank-status/v1`, docs/formats.md)."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from sparkyard_engine.guard.probes import Memory
from sparkyard_engine.guard.signs import Phase, Sign
from sparkyard_engine.rankspec import RankSpec

SCHEMA = "sparkyard/rank-status/v1"
FILE = "status.json"


class Reason(StrEnum):
    """Why a rank ended."""

    STOPPED = "stopped"
    MEMORY_FLOOR = "memory_floor"
    PLUGIN_MISSING = "plugin_missing"
    HANG = "hang"
    ENGINE_EXIT = "engine_exit"
    ENGINE_SIGNAL = "engine_signal"
    SPAWN_FAILED = "spawn_failed"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a rank. `exit_code` is the engine's, negative for a signal, None when it never ran."""

    reason: Reason
    detail: str
    exit_code: int | None
    log_tail: tuple[str, ...]

    def is_good(self) -> bool:
        """Whether somebody wanted this end."""
        return self.reason is Reason.STOPPED or (self.reason is Reason.ENGINE_EXIT and self.exit_code == 0)


@dataclass(frozen=True, slots=True)
class Moment:
    """What the guard knows at one moment. Times are unix seconds."""

    guard_pid: int
    engine_pid: int | None
    phase: Phase
    phases: Mapping[Phase, float]
    progress: Sign
    last_log_unix_s: float | None
    proof: Mapping[str, Any] | None
    engram: Mapping[str, Any] | None
    end: End | None


def document(spec: RankSpec, memory: Memory, moment: Moment, now_unix_s: float) -> dict[str, Any]:
    """The status file's object."""
    return {
        "schema": SCHEMA,
        "deployment": spec.deployment,
        "generation": spec.generation,
        "rank": spec.rank,
        "spec": spec.identity,
        "guard_pid": moment.guard_pid,
        "engine_pid": moment.engine_pid,
        "phase": moment.phase.value,
        "phases": {phase.value: seen for phase, seen in moment.phases.items()},
        "memory_available_bytes": memory.available_bytes,
        "memory_low_water_bytes": memory.low_water_bytes,
        "memory_free_low_water_bytes": memory.free_low_water_bytes,
        "weights_bytes": moment.progress.weights_bytes,
        "kv_tokens": moment.progress.kv_tokens,
        "kv_tokens_asked": asked_tokens(spec.argv),
        "last_log_unix_s": moment.last_log_unix_s,
        "utc_offset_s": time.localtime(now_unix_s).tm_gmtoff,
        "updated_unix_s": now_unix_s,
        "proof": moment.proof,
        "engram": moment.engram,
        "ended": None if moment.end is None else _ended(moment.end),
    }


def _ended(end: End) -> dict[str, Any]:
    code = end.exit_code
    return {
        "reason": end.reason.value,
        "detail": end.detail,
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": -code if code is not None and code < 0 else None,
        "log_tail": list(end.log_tail),
    }


def own_end(exit_code: int) -> tuple[Reason, str]:
    """The reason when nobody asked for the end."""
    if exit_code < 0:
        return Reason.ENGINE_SIGNAL, f"the engine was killed by {signal.Signals(-exit_code).name}"
    return Reason.ENGINE_EXIT, f"the engine exited with status {exit_code}"


def asked_tokens(argv: tuple[str, ...]) -> int | None:
    """The KV tokens that the command line pins, None when it pins none."""
    for word, value in pairwise(argv):
        if word == "--max-total-tokens" and value.isdigit():
            return int(value)
    return None
