"""The job status file that long work reports through (`sparkyard/job-status/v1`, docs/formats.md)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sparkyard_engine.engram.format import canonical
from sparkyard_engine.engram.manifest import write_whole

SCHEMA: Final = "sparkyard/job-status/v1"
State = Literal["running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Writes one file, over and over. path None: nobody asked."""

    path: Path | None
    unit: str

    def write(self, state: State, done: int, total: int, note: str, error: str | None = None) -> None:
        """Replaces the file. Raises OSError when it cannot."""
        if self.path is None:
            return
        write_whole(
            self.path,
            canonical(
                {
                    "schema": SCHEMA,
                    "state": state,
                    "done": done,
                    "total": total,
                    "unit": self.unit,
                    "note": note,
                    "error": error,
                    "updated_unix_s": round(time.time(), 3),
                }
            )
            + b"\n",
        )
