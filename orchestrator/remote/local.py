"""The node that the controller runs on: the same agent, over a pipe."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from orchestrator.errors import AskError
from orchestrator.remote.boot import ARGV

END_TIMEOUT_S = 5.0
LAST_WORDS_BYTES = 2000
THROWN_AWAY_BYTES = 1 << 20


class LocalPipe:
    """A child process as a `Pipe`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def read(self, limit: int) -> bytes:
        """See `Pipe`."""
        if self._process.stdout is None:
            raise AssertionError("started with a pipe")
        return await self._process.stdout.read(limit)

    async def write(self, data: bytes) -> None:
        """See `Pipe`."""
        if self._process.stdin is None:
            raise AssertionError("started with a pipe")
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def close(self) -> None:
        """See `Pipe`."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._last_bytes()
        except TimeoutError:
            self._process.kill()
            with suppress(TimeoutError):  # what it has started may hold its pipes for as long as it lives
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._last_bytes()

    async def _last_bytes(self) -> None:
        """Until it has ended. What it still says is thrown away: unread, it would keep its pipes open, and us."""
        for stream in (self._process.stdout, self._process.stderr):
            while stream is not None and await stream.read(THROWN_AWAY_BYTES):
                pass
        await self._process.wait()

    async def last_words(self) -> str:
        """See `Pipe`."""
        if self._process.stderr is None:
            return ""
        return (await self._process.stderr.read(LAST_WORDS_BYTES)).decode("utf-8", "replace").strip()


async def dial() -> LocalPipe:
    """Start the agent's boot program here. AskError when there is no Python."""
    try:
        return LocalPipe(await asyncio.create_subprocess_exec(*ARGV, stdin=PIPE, stdout=PIPE, stderr=PIPE))
    except OSError as error:
        raise AskError("failed", f"{ARGV[0]}: {error.strerror}") from None
