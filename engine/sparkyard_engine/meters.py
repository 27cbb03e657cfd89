"""The Engram reader's counters as Prometheus metrics of this rank, and as a file for the guard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkyard_engine.engram.counters import Counters
from sparkyard_engine.files import write_json

FILE = "engram.json"  # beside the rank's status.json; the guard copies it into the status
FILE_PERIOD_S = 1.0
# Metric (without `_total`), what it counts, and the counter behind it.
SUMS = (
    ("sparkyard_engram_rows_read", "Rows looked up in this rank's slice, repeats counted", "rows_requested"),
    ("sparkyard_engram_rows_unique", "Rows looked up, each once a batch", "rows_unique"),
    ("sparkyard_engram_cache_hits", "Rows found in the row cache", "cache_hits"),
    ("sparkyard_engram_bytes_read", "Bytes read from the drive", "bytes_read"),
    ("sparkyard_engram_errors", "Batches that failed; the rank ends at the first", "errors"),
    ("sparkyard_engram_read_seconds", "Seconds spent in look-ups", "read_s"),
)


class Meters:
    """Counters of all tables of one rank. ``count`` runs in the forward pass, the file is written by a
    thread."""

    def __init__(self, rank: int, mode: str, directory: Path) -> None:
        """Must be called after SGLang has set PROMETHEUS_MULTIPROC_DIR, which prometheus_client reads when
        imported."""
        from prometheus_client import Counter, Gauge

        self._rank, self._file = str(rank), directory / FILE
        self.poll: Callable[[], None] | None = None  # where no forward pass counts: asked before each file
        self._seen: dict[int, Counters] = {}
        self._written: dict[int, Counters] = {}
        self._sums = [(Counter(name, text, ("tp_rank", "layer")), field) for name, text, field in SUMS]
        active = Gauge(
            "sparkyard_plugin_active",
            "1 where the plug-in is active in the rank's scheduler",
            ("tp_rank", "mode"),
            multiprocess_mode="max",
        )
        active.labels(self._rank, mode).set(1)

    def count(self, layer: int, now: Counters) -> None:
        """Takes over the reader's sums; safe against a reader that starts at zero again."""
        before = self._seen.get(layer, Counters())
        for counter, field in self._sums:
            grown = getattr(now, field) - getattr(before, field)
            counter.labels(self._rank, str(layer)).inc(max(0, grown))
        self._seen[layer] = now

    def start_file(self) -> None:
        """Keeps the file up to date from a daemon thread, so that a slow disk never holds a forward pass."""
        self._write()
        threading.Thread(target=self._keep, name="engram-counters", daemon=True).start()

    def _keep(self) -> None:
        tick = threading.Event()
        while not tick.wait(FILE_PERIOD_S):
            if self.poll is not None:
                self.poll()
            if self._seen != self._written:
                self._write()

    def _write(self) -> None:
        seen = dict(self._seen)
        layers = {str(layer): counters.as_json() for layer, counters in seen.items()}
        sums: dict[str, Any] = {
            field: sum(getattr(counters, field) for counters in seen.values()) for _, _, field in SUMS
        }
        try:
            write_json(self._file, {**sums, "layers": layers})
        except OSError:  # a full disk must not end a serving rank; the guard shows an old file
            return
        self._written = seen
