"""The rank spec as this side reads it (format `sparkyard/rank-spec/v1`, docs/formats.md)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "sparkyard/rank-spec/v1"
SPEC_VARIABLE = "SPARKYARD_RANK_SPEC"  # the plug-in finds the spec's path here
SPEC_LIMIT_BYTES = 1 << 20  # a spec is some kilobytes; anything larger is not one
SILENCE_LIMIT_S = 900.0  # the slowest quiet stretch reported in a V4.1 boot is ~8 min (reading 476 GiB)


class RankSpecError(Exception):
    """The file is not a rank spec; the text names the key and what is wrong."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank's work order. `identity` is the SHA-256 of the canonical JSON, lower-case hex."""

    identity: str
    deployment: str
    generation: int
    rank: int
    tp: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: Path
    memory_floor_bytes: int | None
    memory_floor_below_start_bytes: int | None
    grace_s: float
    silence_limit_s: float
    api_port: int | None
    gate_port: int | None
    metrics_port: int | None
    plugin: Mapping[str, Any]


LEAST_FLOOR_BYTES = 256 << 20
"""A host that had less than the profile's distance to begin with still has a floor: below this it stands still."""


def floor_bytes(spec: RankSpec, available_at_start_bytes: int) -> int:
    """MemAvailable below which the engine ends."""
    if spec.memory_floor_bytes is not None:
        return spec.memory_floor_bytes
    return max(LEAST_FLOOR_BYTES, available_at_start_bytes - (spec.memory_floor_below_start_bytes or 0))


def identity_of(value: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of `value`. RankSpecError for a text that UTF-8 cannot hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise RankSpecError(f"(file): half a surrogate pair at {error.start}: not a text") from None


def load(path: Path) -> RankSpec:
    """Read and check a rank spec. Raises RankSpecError with the path and the key."""
    try:
        with path.open("rb") as file:
            raw = file.read(SPEC_LIMIT_BYTES + 1)
        value = json.loads(raw)
    except OSError as error:
        raise RankSpecError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RankSpecError(f"{path}: not JSON: {error}") from error
    try:
        return parse(value)
    except RankSpecError as error:
        raise RankSpecError(f"{path}: {error}") from error


def from_environment(environment: Mapping[str, str] = os.environ) -> RankSpec | None:
    """The spec that the guard named for this process tree; None when there is no guard."""
    path = environment.get(SPEC_VARIABLE)
    return load(Path(path)) if path else None


def parse(value: object) -> RankSpec:
    """Check the decoded JSON `value` and freeze it. Raises RankSpecError naming the key."""
    if not isinstance(value, dict):
        raise RankSpecError(f"expected an object, found {type(value).__name__}")
    if value.get("schema") != SCHEMA:
        raise RankSpecError(f"schema: expected {SCHEMA!r}, found {value.get('schema')!r}")
    take = _Taker(value)
    argv = value.get("argv")
    if not (isinstance(argv, list) and argv and all(isinstance(word, str) for word in argv)):
        raise RankSpecError("argv: expected a list of strings with at least one entry")
    if not Path(argv[0]).is_absolute():
        raise RankSpecError(f"argv[0]: expected an absolute path, found {argv[0]!r}")
    env = value.get("env")
    if not (isinstance(env, dict) and all(isinstance(text, str) for text in env.values())):
        raise RankSpecError("env: expected an object of strings")
    if bad := [name for name in env if not name or "=" in name or "\0" in name + env[name]]:
        raise RankSpecError(f"env: not a variable that can be set: {bad[0]!r}")
    if any("\0" in word for word in argv):
        raise RankSpecError("argv: a NUL byte cannot be passed to a program")
    directory = Path(take.text("directory"))
    if not directory.is_absolute():
        raise RankSpecError(f"directory: expected an absolute path, found {str(directory)!r}")
    plugin = value.get("plugin")
    if not isinstance(plugin, dict):
        raise RankSpecError("plugin: expected an object")
    floors = ("memory_floor_bytes", "memory_floor_below_start_bytes")
    if sum(value.get(key) is not None for key in floors) != 1:
        raise RankSpecError(f"{floors[0]}: exactly one of it and {floors[1]} must be given")
    rank, tp = take.whole("rank", 0), take.whole("tp", 1)
    if rank >= tp:
        raise RankSpecError(f"rank: expected less than tp = {tp}, found {rank}")
    return RankSpec(
        identity=identity_of(value),
        deployment=take.text("deployment"),
        generation=take.whole("generation", 0),
        rank=rank,
        tp=tp,
        argv=tuple(argv),
        env=dict(env),
        directory=directory,
        memory_floor_bytes=take.whole_or_none("memory_floor_bytes", 0),
        memory_floor_below_start_bytes=take.whole_or_none("memory_floor_below_start_bytes", 0),
        grace_s=take.seconds("grace_s"),
        silence_limit_s=take.seconds("silence_limit_s", SILENCE_LIMIT_S),
        api_port=take.port("api_port"),
        gate_port=take.port("gate_port"),
        metrics_port=take.port("metrics_port"),
        plugin=plugin,
    )


@dataclass(frozen=True, slots=True)
class _Taker:
    value: Mapping[str, Any]

    def text(self, key: str) -> str:
        found = self.value.get(key)
        if not isinstance(found, str) or not found:
            raise RankSpecError(f"{key}: expected a text, found {found!r}")
        return found

    def whole(self, key: str, least: int) -> int:
        found = self.value.get(key)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise RankSpecError(f"{key}: expected a whole number of at least {least}, found {found!r}")
        return found

    def whole_or_none(self, key: str, least: int) -> int | None:
        return None if self.value.get(key) is None else self.whole(key, least)

    def seconds(self, key: str, default: float | None = None) -> float:
        found = self.value.get(key, default)
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 < found < float("inf"):
            raise RankSpecError(f"{key}: expected seconds above 0, found {found!r}")
        return float(found)

    def port(self, key: str) -> int | None:
        found = self.value.get(key)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 65536:
            raise RankSpecError(f"{key}: expected a port or null, found {found!r}")
        return found
