"""What happened, handed to whoever follows: a view, the exporter, the file, a terminal on the other end of a socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from orchestrator.model.sample import Happened, NodeSampled
from orchestrator.view.state import State, fold

RECENT_MAX = 512
"""Events that a late follower gets first."""
BEHIND_MAX = 4096
"""A follower that lags by more is cut off, and may come again: it must not hold memory here."""

Line = tuple[float, Happened]


class Feed:
    """Folds everything into one state and passes it on. Belongs to one event loop."""

    def __init__(self, state: State, now: Callable[[], float]) -> None:
        self.state = state
        self._now = now
        self._recent: deque[Line] = deque(maxlen=RECENT_MAX)
        self._samples: dict[str, Line] = {}
        self._followers: set[asyncio.Queue[Line | None]] = set()

    def put(self, happened: Happened) -> None:
        """Something happened now."""
        self.put_at(happened, self._now())

    def put_at(self, happened: Happened, at_unix_s: float) -> None:
        """Something happened at that time."""
        line = (at_unix_s, happened)
        self.state = fold(self.state, happened, line[0])
        if isinstance(happened, NodeSampled):
            self._samples[happened.node] = line
        else:
            self._recent.append(line)
        for queue in tuple(self._followers):
            try:
                queue.put_nowait(line)
            except asyncio.QueueFull:
                self._followers.discard(queue)
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)

    def source(self) -> tuple[State, float]:
        """The newest state and the time now; safe from any thread, since a state never changes."""
        return self.state, self._now()

    async def follow(self) -> AsyncIterator[Line]:
        """What a late comer must know, then everything new. Ends when the follower is too slow."""
        queue: asyncio.Queue[Line | None] = asyncio.Queue(BEHIND_MAX)
        early = sorted([*self._recent, *self._samples.values()], key=lambda line: line[0])
        self._followers.add(queue)
        try:
            for line in early:
                yield line
            while (new := await queue.get()) is not None:
                yield new
        finally:
            self._followers.discard(queue)
