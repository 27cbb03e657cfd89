"""The one seam to the world: ask a node, get messages, the last of which is the reply."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.model.step import Failure


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: its name, its arguments, and the fence of the lease for what changes the node."""

    what: str
    args: dict[str, Any] = field(default_factory=dict)
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class Progressed:
    """The work goes on; `data` is what the agent reported."""

    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The end: a value, or a failure of this node."""

    value: dict[str, Any]
    failure: Failure | None = None


Message = Progressed | Reply


class Node(Protocol):
    """A node that can be asked. Implemented for SSH, for a local pipe and for simulation."""

    @property
    def name(self) -> str:
        """As in the cluster file."""
        ...

    def ask(self, request: Ask, *, timeout_s: float) -> AsyncIterator[Message]:
        """Yields progress and at last one `Reply`. Never raises for what the node does or fails to do."""
        ...

    async def close(self) -> None:
        """End the connection; the agent and its short work end with it."""
        ...


async def reply(node: Node, request: Ask, *, timeout_s: float) -> Reply:
    """Only the reply."""
    last: Reply | None = None
    async for message in node.ask(request, timeout_s=timeout_s):
        if isinstance(message, Reply):
            last = message
    return last or Reply({}, Failure(node.name, "protocol", f"{request.what}: no reply"))
