"""The lease: who may act on this node. It is a lock of the agent's process, so it dies with its channel.

The fence is a number that grows with every holder; each action carries it, so that an action of an earlier
holder that arrives late is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from typing import Any

from node_agent import layout
from node_agent.home import Home
from node_agent.wire import Refused


class Lease:
    """At most one a process."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._handle: int | None = None
        self._fence = 0
        self._lock = threading.Lock()

    def take(self, holder: str) -> int:
        """Take the lease for ``holder``; the fence. Refused when another process has it."""
        with self._lock:
            if self._handle is not None:
                return self._fence
            layout.mark(self._home.root)
            handle = os.open(self._home.lease, os.O_RDWR | os.O_CREAT, 0o600)
            known = _parse(os.pread(handle, 4096, 0))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                raise Refused(
                    f"the lease is held by {known.get('holder', 'another controller')}; wait until it ends, or end it",
                    kind="refused",
                ) from None
            self._fence = int(known.get("fence") or 0) + 1
            data = json.dumps({"holder": holder[:200], "fence": self._fence}).encode()
            os.ftruncate(handle, 0)
            os.pwrite(handle, data, 0)
            os.fsync(handle)
            self._handle = handle
            return self._fence

    def give(self) -> None:
        """Give the lease back; nothing happens when it is not held."""
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def check(self, fence: int | None) -> None:
        """Refused unless this process holds the lease and ``fence`` is its number."""
        if self._handle is None or fence != self._fence:
            raise Refused(
                "the lease is gone: the agent was restarted, or another controller took over; run the verb again",
                kind="refused",
            )


def facts(home: Home) -> dict[str, Any] | None:
    """Who holds the lease now; None when nobody does."""
    try:
        handle = os.open(home.lease, os.O_RDWR)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            known = _parse(os.pread(handle, 4096, 0))
            return {"holder": str(known.get("holder", "")), "fence": int(known.get("fence") or 0)}
        return None
    finally:
        os.close(handle)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
