"""`events.jsonl`: the audit. Every view can be replayed from it."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

from orchestrator.model.event import Event, to_json
from orchestrator.model.plain import json_line

ROTATE_BYTES = 64 << 20
"""The file is moved to `events.1.jsonl` above this: about 200,000 events, months of use."""


def open_lines(path: Path) -> TextIO:
    """A file to append lines to. A last line that a crash has cut is ended first, so that ours does not join it."""
    file = path.open("a", encoding="utf-8")
    with path.open("rb") as before:
        if before.seek(0, 2) and before.seek(-1, 2) >= 0 and before.read(1) != b"\n":
            file.write("\n")
    return file


class EventLog:
    """Appends whole lines; a line that is cut by a crash is skipped by every reader."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > ROTATE_BYTES:
            path.replace(path.with_name("events.1.jsonl"))
        self._file = open_lines(path)

    def emit(self, event: Event) -> None:
        """One line."""
        self._file.write(json_line(to_json(event, time.time())) + "\n")
        self._file.flush()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
