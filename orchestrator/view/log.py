"""`events.jsonl`: the audit. Every view can be replayed from it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType

from orchestrator.model.event import Event, to_json

ROTATE_BYTES = 64 << 20
"""The file is moved to `events.1.jsonl` above this: about 200,000 events, months of use."""


class EventLog:
    """Appends whole lines; a line that is cut by a crash is skipped by every reader."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > ROTATE_BYTES:
            path.replace(path.with_name("events.1.jsonl"))
        self._file = path.open("a", encoding="utf-8")
        self._file.write("")

    def emit(self, event: Event) -> None:
        """One line."""
        self._file.write(json.dumps(to_json(event, time.time()), ensure_ascii=False) + "\n")
        self._file.flush()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
