"""The engine's output: read line by line, kept in bounded files, its tail in memory."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOG_BYTES = 32 << 20  # one file; a chatty boot writes about 1 MB
LOG_FILES = 4  # rotated files kept beside the current one
TAIL_LINES = 40
TAIL_LINE_CHARS = 2000
LINE_BYTES = 64 << 10  # a longer line is cut in pieces
READ_BYTES = 64 << 10
_BREAK = re.compile(rb"\r\n|\n|\r")  # progress bars end their lines with a carriage return


class Output:
    """Pumps one pipe until every writer has closed it."""

    def __init__(
        self, fd: int, path: Path, clean: Callable[[str], str], on_line: Callable[[str], None]
    ) -> None:
        """`clean` removes secrets before anything is kept; `on_line` sees each cleaned line."""
        self._fd = fd
        self._clean = clean
        self._on_line = on_line
        self._file = rotating(path)
        self._file.setFormatter(logging.Formatter("%(message)s"))
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.last_line_unix_s = time.time()

    def pump(self) -> None:
        """Read to the end of the pipe; in its own thread: a slow disk must not delay the guard."""
        rest = b""
        while True:
            chunk = os.read(self._fd, READ_BYTES)
            if not chunk:
                break
            *lines, rest = _BREAK.split(rest + chunk)
            for line in lines:
                self._take(line)
            while len(rest) > LINE_BYTES:
                self._take(rest[:LINE_BYTES])
                rest = rest[LINE_BYTES:]
        self._take(rest)
        self._file.close()
        os.close(self._fd)

    def tail(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._tail)

    def _take(self, raw: bytes) -> None:
        if not raw.strip():
            return
        line = self._clean(raw.decode("utf-8", "replace"))
        self.last_line_unix_s = time.time()
        self._tail.append(line[:TAIL_LINE_CHARS])
        self._file.emit(logging.makeLogRecord({"msg": line}))
        self._on_line(line)


def rotating(path: Path) -> RotatingFileHandler:
    """A bounded log file. A full disk costs lines, never the guard: the handler swallows the error."""
    handler = RotatingFileHandler(
        path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", errors="replace"
    )
    handler.handleError = _ignore  # type: ignore[method-assign]
    return handler


def _ignore(record: logging.LogRecord) -> None:
    del record
