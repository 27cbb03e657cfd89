"""Captures: the facts of several nodes in one file, redacted, and judged again without the nodes.

`docs/formats.md` describes the file. A folder works as well: one sub-folder a node with a recording or with pasted
command output, which the node agent's own readers turn into facts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from orchestrator.checks.check import Node, Topology, Yard
from orchestrator.errors import ConfigError
from orchestrator.model.frozen import Frozen
from orchestrator.model.hardware import Hardware
from orchestrator.redact import redacted

MAX_CAPTURE_BYTES = 256 * 1024 * 1024
READ_TIMEOUT_S = 60.0
MAX_PROBLEMS = 20
CHECKOUT = Path(__file__).resolve().parent.parent


class CapturedNode(Frozen):
    """One node of a capture."""

    hardware: Hardware | None = None
    unreachable: str = Field(default="", max_length=1000)
    offset_s: float | None = None
    ports: tuple[int, ...] = Field(default=(), max_length=100)
    paths: tuple[str, ...] = Field(default=(), max_length=100)


class Capture(Frozen):
    """The whole file."""

    schema_: Literal["sparkyard/capture/v1"] = Field(alias="schema")
    taken_unix_s: float
    topology: Topology | None = None
    docker: bool = True
    tp: int | None = None
    ring_library: bool = False
    environment: dict[str, str] = Field(default_factory=dict, max_length=500)
    nodes: dict[str, CapturedNode] = Field(min_length=1, max_length=64)


def capture_of(yard: Yard) -> Capture:
    """What `--bundle` saves of a yard."""
    nodes = {
        node.name: CapturedNode(
            hardware=node.hardware,
            unreachable=node.unreachable,
            offset_s=node.offset_s,
            ports=node.ports,
            paths=node.paths,
        )
        for node in yard.nodes
    }
    return Capture(
        schema="sparkyard/capture/v1",
        taken_unix_s=yard.now_unix_s,
        topology=yard.topology,
        docker=yard.docker,
        tp=yard.tp,
        ring_library=yard.ring_library,
        environment=dict(yard.environment),
        nodes=nodes,
    )


def yard_of(capture: Capture) -> Yard:
    """The yard as it was when the capture was taken: probe results keep the age that they had."""
    nodes = tuple(
        Node(name, item.hardware, item.unreachable, item.offset_s, item.ports, item.paths)
        for name, item in capture.nodes.items()
    )
    return Yard(
        nodes=nodes,
        now_unix_s=capture.taken_unix_s,
        topology=capture.topology,
        docker=capture.docker,
        tp=capture.tp,
        ring_library=capture.ring_library,
        environment=capture.environment,
    )


def save(yard: Yard, place: Path) -> None:
    """Write a redacted capture: temporary name, fsync, rename. ConfigError when the place cannot be written."""
    data = redacted(capture_of(yard).model_dump(mode="json", by_alias=True))
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=place.parent, prefix=f".{place.name}.", delete=False
        ) as file:
            json.dump(data, file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(place)
    except OSError as error:
        raise ConfigError([f"{place}: cannot be written: {error.strerror}"]) from error


def load(place: Path, *, now_unix_s: float) -> Yard:
    """Read a capture file, or a folder of nodes. ConfigError lists everything that is wrong with it.

    `now_unix_s` stands in for the time of a folder, which does not know when it was taken.
    """
    if place.is_dir():
        return _from_folder(place, now_unix_s)
    return yard_of(_parsed(_json(place), str(place)))


def _json(place: Path) -> Any:
    try:
        if place.stat().st_size > MAX_CAPTURE_BYTES:
            raise ConfigError([f"{place}: larger than {MAX_CAPTURE_BYTES} bytes"])
        return json.loads(place.read_text("utf-8"))
    except OSError as error:
        raise ConfigError([f"{place}: {error.strerror}"]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{place}: not JSON: {error}"]) from error


def _parsed(data: Any, where: str) -> Capture:
    try:
        return Capture.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_problems(error, where)) from error


def _problems(error: ValidationError, where: str) -> list[str]:
    found = error.errors()
    texts = [f"{where}: {'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in found]
    more = len(texts) - MAX_PROBLEMS
    return [*texts[:MAX_PROBLEMS], *([f"{where}: and {more} more"] if more > 0 else [])]


def _from_folder(place: Path, now_unix_s: float) -> Yard:
    own = any(place.glob("*.txt")) or (place / "node.json").exists()
    folders = [place] if own else sorted(path for path in place.iterdir() if path.is_dir())
    if not folders:
        raise ConfigError([f"{place}: no node in it: expected one folder a node, or text files"])
    problems: list[str] = []
    nodes: dict[str, Hardware] = {}
    for folder in folders:
        facts = folder / "facts.json"
        try:
            nodes[folder.name] = Hardware.model_validate(_json(facts) if facts.exists() else _read(folder))
        except ValidationError as error:
            problems += _problems(error, str(folder))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return Yard(tuple(Node(name, hardware) for name, hardware in nodes.items()), now_unix_s)


def _read(folder: Path) -> Mapping[str, Any]:
    """Facts of a recorded or pasted node, by the agent's readers in a process of their own."""
    command = [sys.executable, "-m", "node_agent.facts", str(folder.resolve())]
    try:
        ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, timeout=READ_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError([f"{folder}: reading it took more than {READ_TIMEOUT_S:g} s"]) from error
    if ran.returncode != 0:
        raise ConfigError([f"{folder}: {ran.stderr.decode(errors='replace').strip()[:500]}"])
    found: Mapping[str, Any] = json.loads(ran.stdout)
    return found
