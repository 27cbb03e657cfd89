"""`monitor`: watches every node, exports what it sees, and hands it to whoever attaches, until it is stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConfigError, Exit, SparkyardError
from orchestrator.model.event import Said
from orchestrator.model.sample import Happened
from orchestrator.remote.node import Node
from orchestrator.remote.nodes import nodes
from orchestrator.verbs import Answer, Session
from orchestrator.view.state import empty
from orchestrator.watch.exporter import serve_metrics, targets
from orchestrator.watch.feed import Feed
from orchestrator.watch.local import serve_local, socket_path
from orchestrator.watch.samples import Pace, watch

PORT = 9477
TOKEN_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the exporter listens; `token_file` holds what a scraper must send, needed beyond loopback."""

    address: str = "127.0.0.1"
    port: int = PORT
    token_file: Path | None = None

    def token(self) -> str | None:
        """ConfigError when the file cannot be read or is empty."""
        if self.token_file is None:
            return None
        try:
            text = self.token_file.read_text(encoding="ascii")[:TOKEN_MAX_BYTES].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"{self.token_file}: {error}"]) from None
        if not text:
            raise ConfigError([f"{self.token_file}: empty"])
        return text


Beside = Callable[[Feed, Mapping[str, Node]], Awaitable[None]]
"""More work for as long as the monitor runs, such as the watch over the gang."""


async def monitor(
    session: Session, folder: Path, listen: Listen, pace: Pace, beside: tuple[Beside, ...] = ()
) -> Answer:
    """Runs until SIGINT or SIGTERM. Each event of the watch is folded, exported, and goes over the local socket.

    Raises:
        ConfigError, ListenError, SocketError: the exporter or the socket cannot be served.
    """
    feed = Feed(empty(session.profile, session.cluster), time.time)
    token = listen.token()
    session.listen_for_interrupt()
    asked = nodes(session.cluster)

    def emit(happened: Happened) -> None:
        feed.put(happened)

    def listening(port: int) -> None:
        session.emit(Said("note", f"metrics on http://{listen.address}:{port}/metrics"))

    work = [
        asyncio.create_task(watch(asked, emit, pace)),
        asyncio.create_task(serve_local(feed, socket_path(folder))),
        asyncio.create_task(
            serve_metrics(
                feed.source,
                listen.address,
                listen.port,
                ranks=targets(session.profile, session.cluster),
                token=token,
                bound=listening,
            )
        ),
        *(asyncio.ensure_future(more(feed, asked)) for more in beside),
        asyncio.create_task(_interrupted(session)),
    ]
    try:
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if (error := task.exception()) is not None:
                raise error
    finally:
        for task in work:
            task.cancel()
        await asyncio.wait(work)
        await asyncio.gather(*(node.close() for node in asked.values()))
    if not session.interrupted:
        raise SparkyardError("the monitor ended by itself")
    return Answer({}, Exit.FINE)


async def _interrupted(session: Session) -> None:
    while not session.interrupted:  # noqa: ASYNC110 - the signal handler sets a plain flag
        await asyncio.sleep(0.2)
