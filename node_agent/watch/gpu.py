"""The GPU: one long-lived nvidia-smi that repeats itself, never one process a reading."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from typing import Any

from node_agent.facts.gpu import QUERY, QUERY_TIMEOUT_S, parse_devices
from node_agent.facts.source import DeniedError, Source, TimedOutError, UnreadableError

KEPT = ("sm_mhz", "sm_max_mhz", "power_w", "temperature_c", "utilization_percent", "pstate")
END_TIMEOUT_S = 2.0
RETRY_S = 60.0
"""After nvidia-smi ended by itself or is missing: a driver that is being replaced takes about this long."""


class GpuLoop:
    """Readings at one pace while nothing serves, and at a slower one while a rank does."""

    def __init__(self, every_s: float, serving_every_s: float) -> None:
        self._paces = {False: every_s, True: serving_every_s}
        self._pace = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._newest: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._next_s = 0.0

    def reading(self, source: Source, *, serving: bool) -> dict[str, Any] | None:
        """A reading that was not given before; None when there is no news, or no GPU."""
        pace = self._paces[serving]
        if pace == 0:
            self.close()
            return None
        if source.origin != "live":
            return self._recorded(source, pace)
        if pace != self._pace or self._process is None or self._process.poll() is not None:
            self._start(pace)
        with self._lock:
            newest, self._newest = self._newest, None
        return newest

    def close(self) -> None:
        """End nvidia-smi."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
            self._process = None

    def _start(self, pace: float) -> None:
        if pace == self._pace and time.monotonic() < self._next_s:
            return
        self.close()
        self._pace, self._next_s = pace, time.monotonic() + RETRY_S
        try:
            self._process = subprocess.Popen(
                [*QUERY, f"--loop-ms={int(pace * 1000)}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return
        threading.Thread(target=self._pump, args=(self._process,), daemon=True).start()

    def _pump(self, process: subprocess.Popen[bytes]) -> None:
        for row in process.stdout or ():
            devices = parse_devices(row.decode("utf-8", "replace"))
            if devices:
                with self._lock:
                    self._newest = _kept(devices[0])

    def _recorded(self, source: Source, pace: float) -> dict[str, Any] | None:
        if time.monotonic() < self._next_s:
            return None
        self._next_s = time.monotonic() + pace
        try:
            ran = source.run(*QUERY, timeout_s=QUERY_TIMEOUT_S)
        except (DeniedError, UnreadableError, TimedOutError):
            return None
        devices = parse_devices(ran.out) if ran else []
        return _kept(devices[0]) if devices else None


def _kept(device: dict[str, Any]) -> dict[str, Any]:
    return {key: device[key] for key in KEPT}
