"""The monitor's local socket: event lines to whoever attaches, such as `top`. Only this user can open it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import SparkyardError
from orchestrator.model.plain import json_line
from orchestrator.model.sample import happened_from_json, happened_json
from orchestrator.watch.feed import Feed

NAME = "monitor.sock"
LINE_MAX_BYTES = 1 << 20
"""A sample of a node with all its links and ranks is about 4 KB."""
CONNECT_TIMEOUT_S = 2.0
WRITE_TIMEOUT_S = 10.0
"""Whoever reads nothing for so long is hung up on."""
FOLLOWERS_MAX = 16


class SocketError(SparkyardError):
    """The socket cannot be made, or no monitor listens on it."""


def socket_path(folder: Path) -> Path:
    """Beside `events.jsonl`."""
    return folder / NAME


async def serve_local(feed: Feed, path: Path) -> None:
    """Serve until cancelled. SocketError when another monitor serves there already."""
    if await _listens(path):
        raise SocketError(f"{path}: another monitor of this cluster is running")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - one call on a local folder
    followers: set[asyncio.Task[None]] = set()

    async def attached(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(followers) >= FOLLOWERS_MAX:
            writer.close()
            return
        followers.add(task)
        try:
            async for at_unix_s, happened in feed.follow():
                line = json_line(happened_json(happened, at_unix_s))
                writer.write(line.encode() + b"\n")
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await writer.drain()
        except (OSError, TimeoutError):
            return
        finally:
            followers.discard(task)
            writer.close()

    try:
        server = await asyncio.start_unix_server(attached, path)
    except OSError as error:
        raise SocketError(f"{path}: {error.strerror}") from None
    path.chmod(0o600)  # noqa: ASYNC240 - as above
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        for task in tuple(followers):
            task.cancel()
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - as above


async def _listens(path: Path) -> bool:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def attach(path: Path, feed: Feed) -> None:
    """Put the monitor's events into ``feed`` until it ends. SocketError when no monitor listens or it went away."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=LINE_MAX_BYTES)
    except (OSError, TimeoutError) as error:
        raise SocketError(f"no monitor listens on {path}: {error}") from None
    try:
        while line := await reader.readline():
            at_unix_s, happened = happened_from_json(json.loads(line))
            feed.put_at(happened, at_unix_s)
    except (OSError, ValueError) as error:
        raise SocketError(f"the monitor on {path} says what is not understood: {error}") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    raise SocketError("the monitor has ended")
