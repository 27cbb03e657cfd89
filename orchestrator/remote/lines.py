"""The one reader of JSON lines from elsewhere: bounded in size, depth and kind before anything is kept."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from orchestrator.errors import AskError
from orchestrator.model.plain import plain

LINE_MAX_BYTES = 8 << 20
"""As in the agent: the longest line in either direction."""
READ_BYTES = 1 << 16


class Lines:
    """Messages from a stream. Holds at most one line and one read."""

    def __init__(
        self, read: Callable[[int], Awaitable[bytes]], last_words: Callable[[], Awaitable[str]]
    ) -> None:
        self._read = read
        self._last_words = last_words
        self._buffer = bytearray()
        self.size_bytes = 0
        """Of the last message, as it came."""

    async def message(self) -> dict[str, Any]:
        """The next one, its texts harmless. AskError: the stream ended, a line is too long, or is not a message."""
        return parsed(await self._line())

    async def _line(self) -> bytes:
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > LINE_MAX_BYTES:
                self._buffer.clear()
                raise AskError("protocol", f"a line of over {LINE_MAX_BYTES:,} bytes")
            data = await self._read(READ_BYTES)
            if not data:
                words = await self._last_words()
                raise AskError("unreachable", f"the channel ended: {words or 'without a word'}")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self.size_bytes = len(line)
        return line


def parsed(line: bytes) -> dict[str, Any]:
    """The message in a line. AskError when it is none."""
    try:
        message = plain(json.loads(line))
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise AskError("protocol", f"not a message ({why[:200]}): {line[:200]!r}") from None
    if not isinstance(message, dict):
        raise AskError("protocol", f"not a message: {line[:200]!r}")
    return message
