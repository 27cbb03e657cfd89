"""Records on this machine: one JSON file each, written once, never changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import ValidationError

from orchestrator.bench.export import json_text
from orchestrator.bench.published import read_published
from orchestrator.bench.record import Record
from orchestrator.errors import ConfigError


def folder() -> Path:
    """Where records are kept: `$XDG_STATE_HOME/sparkyard/bench`, else under `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "sparkyard" / "bench"


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all.

    Raises:
        ConfigError: the folder cannot be made or the file not be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as problem:
        raise ConfigError([f"{path}: {problem.strerror}"]) from None


def keep(record: Record, where: Path) -> Path:
    """Stores the record and gives its file."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(record.started_unix_s))
    path = where / f"{moment}-{record.id}.json"
    write(path, json_text(record))
    return path


def read(name: str, where: Path) -> tuple[Record, ...]:
    """Records of one argument: a record's file, the beginning of a stored record's id, or a file of published
    tables.

    Raises:
        ConfigError: there is no such record, or the file is something else.
    """
    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        return read_published(path)
    if not path.exists():
        found = sorted(where.glob(f"*-{name}*.json")) if name else []
        if len(found) != 1:
            what = "several stored records begin" if found else "no file and no stored record begins"
            raise ConfigError([f"{name}: {what} so; records are in {where}"])
        path = found[0]
    try:
        return (Record.model_validate_json(path.read_text("utf-8")),)
    except OSError as problem:
        raise ConfigError([f"{path}: {problem.strerror}"]) from None
    except (ValidationError, UnicodeDecodeError) as problem:
        lines = (
            [f"{path}: {'.'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.errors()]
            if isinstance(problem, ValidationError)
            else [f"{path}: no text"]
        )
        raise ConfigError(lines) from None
