"""JSON lines between controller and agent (docs/formats.md): bounded, one object a line, answers by request id."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

LINE_MAX_BYTES = 8 << 20
"""Longest line in either direction. The largest real one is a blob chunk or the facts with hardware."""

Report = Callable[[dict[str, Any]], None]


class Refused(Exception):
    """The request cannot be done; the text names what was measured, expected and the remedy."""

    def __init__(self, message: str, kind: str = "failed", evidence: list[str] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.evidence = evidence or []


class Writer:
    """Writes whole lines, from any thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """One message. A message that is too long is replaced by an error for the same request."""
        try:
            data = json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        except (ValueError, TypeError) as wrong:
            error = {"kind": "protocol", "message": f"an answer that is no JSON: {wrong}"}
            data = json.dumps({"id": message.get("id"), "ok": False, "error": error}).encode() + b"\n"
        if len(data) > LINE_MAX_BYTES:
            error = {"kind": "protocol", "message": f"answer of {len(data)} bytes is over {LINE_MAX_BYTES}"}
            data = json.dumps({"id": message.get("id"), "ok": False, "error": error}).encode() + b"\n"
        with self._lock:
            self._stream.write(data)
            self._stream.flush()


def read_line(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end of the stream. ValueError for a line that is not one of ours."""
    line = stream.readline(LINE_MAX_BYTES + 1)
    if not line:
        return None
    if len(line) > LINE_MAX_BYTES:
        raise ValueError(f"line longer than {LINE_MAX_BYTES} bytes")
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("a message is not nested so deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message
