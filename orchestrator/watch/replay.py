"""A run again, from its `events.jsonl`: its own time, stopped, wound and sped up."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.model.sample import Happened, happened_from_json
from orchestrator.view.state import State, fold, unknown

FILE_MAX_BYTES = 1 << 30
LINE_MAX_BYTES = 8 << 20
"""A step's result may be as long as an agent's answer."""
EVENTS_MAX = 100_000
"""The newest are kept: about a day of three nodes at the default pace."""
SPEED_MIN, SPEED_MAX = 1 / 8, 1024.0
QUIET_S = 30.0
"""Between two events nothing is shown for longer than this: a night without a run is skipped."""

Line = tuple[float, Happened]


def read(path: Path) -> tuple[tuple[Line, ...], int]:
    """The file's newest `EVENTS_MAX` events in order, and how many lines are not events (a line that a crash has cut).

    Raises:
        ConfigError: no such file, too large, or no event in it.
    """
    rows: deque[bytes] = deque(maxlen=EVENTS_MAX)
    skipped = 0
    try:
        if path.stat().st_size > FILE_MAX_BYTES:
            raise ConfigError([f"{path}: over {FILE_MAX_BYTES:,} bytes"])
        with path.open("rb") as file:
            while row := file.readline(LINE_MAX_BYTES + 1):
                if len(row) > LINE_MAX_BYTES:  # its end is the next row, and no event either
                    skipped += 1
                elif row.strip():
                    rows.append(row)
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    lines: list[Line] = []
    reason = ""
    while rows:
        try:
            lines.append(happened_from_json(json.loads(rows.popleft())))
        except (ValueError, RecursionError, AttributeError) as error:
            skipped += 1
            reason = reason or str(error)
    if not lines:
        raise ConfigError([f"{path}: no event in it ({reason[:500] or 'it is empty'})"])
    lines.sort(key=lambda line: line[0])
    return tuple(lines), skipped


class Replay:
    """A `Source` over a file's events."""

    def __init__(
        self,
        lines: tuple[Line, ...],
        begin: State | None = None,
        *,
        speed: float = 1.0,
        zone: tzinfo | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`begin`: the empty state of its cluster; without it nodes appear as they are named."""
        self._lines, self._zone, self._clock = lines, zone, clock
        self._begin = begin or unknown()
        self._state, self._next = self._begin, 0
        self._at_s = lines[0][0]
        self._ticked_s = clock()
        self._speed, self._paused = speed, False

    def look(self) -> tuple[State, float]:
        """See `Source`."""
        now = self._clock()
        if not self._paused:
            self._move((now - self._ticked_s) * self._speed)
        self._ticked_s = now
        return self._state, self._at_s

    def _move(self, seconds: float) -> None:
        target = self._at_s + seconds
        if self._next < len(self._lines) and self._lines[self._next][0] - self._at_s > QUIET_S:
            target = max(target, self._lines[self._next][0])
        while self._next < len(self._lines) and self._lines[self._next][0] <= target:
            at, happened = self._lines[self._next]
            self._state = fold(self._state, happened, at)
            self._next += 1
        self._at_s = min(target, self._lines[-1][0])

    def about(self) -> str:
        """See `Source`."""
        clock = datetime.fromtimestamp(self._at_s, self._zone).strftime("%H:%M:%S")
        end = self._next == len(self._lines) and self._at_s >= self._lines[-1][0]
        how = "end" if end else "stopped" if self._paused else f"×{self._speed:g}"
        return f"replay {clock} {how}"

    def pause(self) -> None:
        """See `Seekable`."""
        self.look()
        self._paused = not self._paused

    def seek(self, seconds: float) -> None:
        """See `Seekable`."""
        self.look()
        if seconds < 0:
            target = max(self._lines[0][0], self._at_s + seconds)
            self._state, self._next, self._at_s = self._begin, 0, self._lines[0][0]
            seconds = target - self._at_s
        self._move(seconds)

    def faster(self, factor: float) -> None:
        """See `Seekable`."""
        self.look()
        self._speed = min(SPEED_MAX, max(SPEED_MIN, self._speed * factor))
