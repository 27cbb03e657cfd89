"""A file of everything that a watch saw, for `top --replay`: event lines (docs/formats.md), two files at most."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.model.plain import json_line
from orchestrator.model.sample import Happened, happened_json
from orchestrator.view.log import open_lines
from orchestrator.watch.feed import Feed

FILE_MAX_BYTES = 256 << 20
"""About a day of three nodes at the default pace; the day before is kept beside it."""


class Record:
    """Appends whole lines; a line that is cut by a crash is skipped by every reader."""

    def __init__(self, path: Path) -> None:
        """ConfigError when the file cannot be written."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = open_lines(path)
        except OSError as error:
            raise ConfigError([f"{path}: {error.strerror}"]) from None

    def write(self, happened: Happened, at_unix_s: float) -> None:
        """One line."""
        self._file.write(json_line(happened_json(happened, at_unix_s)) + "\n")
        self._file.flush()
        if self._file.tell() > FILE_MAX_BYTES:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.stem}.1{self._path.suffix}"))
            self._file = open_lines(self._path)

    def close(self) -> None:
        """The end."""
        self._file.close()


async def keep(feed: Feed, path: Path) -> None:
    """Write everything that `feed` tells into ``path``, until cancelled."""
    record = Record(path)
    try:
        async for at_unix_s, happened in feed.follow():
            record.write(happened, at_unix_s)
    finally:
        record.close()
