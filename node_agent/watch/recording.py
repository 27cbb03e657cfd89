"""Where a node's hardware is read: this machine, or its recording (the lab), followed when it is rewritten."""

from __future__ import annotations

from pathlib import Path

from node_agent.facts.source import RECORDING, Live, Recorded, Source, UnreadableError
from node_agent.wire import Refused


class Hardware:
    """The source of hardware facts, live where there is no recording."""

    def __init__(self, recorded: Path | None) -> None:
        self._file = None if recorded is None else recorded / RECORDING if recorded.is_dir() else recorded
        self._live = Live()
        self._recording: Recorded | None = None
        self._stamp: tuple[int, int] | None = None

    def source(self) -> Source:
        """Raises Refused when there is a recording that cannot be read."""
        if self._file is None:
            return self._live
        try:
            status = self._file.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if self._recording is None or stamp != self._stamp:
                self._recording = Recorded.load(str(self._file))
                self._stamp = stamp
        except (OSError, UnreadableError) as error:
            raise Refused(f"the recorded node {self._file} cannot be read: {error}") from None
        return self._recording
