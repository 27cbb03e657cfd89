"""Status of a job (`sparkyard/job-status/v1`), written at most a few times a second."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from node_agent.files import write_json

EVERY_S = 0.5


class Status:
    """Counts up to a total; safe from several threads."""

    def __init__(self, path: Path, unit: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._last_s = 0.0
        self._done = 0
        self._total = 0
        self._words = {
            "schema": "sparkyard/job-status/v1",
            "state": "running",
            "unit": unit,
            "note": "",
            "error": "",
        }
        self._write(now=True)

    def total(self, total: int) -> None:
        """What there is to do."""
        self._total = total

    def at(self, done: int) -> None:
        """What is done; the total is never passed."""
        self._done = min(done, self._total) if self._total else done
        self._write()

    def note(self, text: str) -> None:
        """A word on the phase."""
        self._words["note"] = text
        self._write()

    def fail(self, error: str) -> None:
        """The end, with the reason."""
        self._words |= {"state": "failed", "error": error[:4000]}
        self._write(now=True)

    def done(self) -> None:
        """The good end."""
        self._words["state"] = "done"
        self._done = self._total or self._done
        self._write(now=True)

    def _write(self, *, now: bool = False) -> None:
        with self._lock:
            moment = time.monotonic()
            if now or moment - self._last_s >= EVERY_S:
                self._last_s = moment
                counts = {"done": self._done, "total": self._total, "updated_unix_s": time.time()}
                write_json(self._path, {**self._words, **counts})
