"""Where the dashboard's state comes from, and what it may do. Implemented outside: live, through a socket, replay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from orchestrator.view.state import State

Verb = Literal["stop", "restart"]


class Source(Protocol):
    """The newest state."""

    def look(self) -> tuple[State, float]:
        """State and the time at which it is looked at, unix seconds."""
        ...

    def about(self) -> str:
        """Where it comes from, for the footer: `live`, `monitor`, `replay 12:00:03 ×4`."""
        ...


class Seekable(Protocol):
    """A source whose time can be moved."""

    def pause(self) -> None:
        """Stop or go on."""
        ...

    def seek(self, seconds: float) -> None:
        """Forward, or back where negative."""
        ...

    def faster(self, factor: float) -> None:
        """Multiply the speed."""
        ...


@dataclass(frozen=True, slots=True)
class Controls:
    """What a person can order from the dashboard. Each returns lines to show, and never raises."""

    logs: Callable[[str], Awaitable[list[str]]]
    """Last lines of the engine on a node."""
    doctor: Callable[[], Awaitable[list[str]]]
    plan: Callable[[Verb], Awaitable[list[str]]]
    """What the verb would do, without doing it."""
    perform: Callable[[Verb], Awaitable[list[str]]]
