"""What a reader is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node_agent.facts.source import Source


@dataclass(frozen=True)
class Reader:
    """One fact of a node.

    name: the key of the fact; the controller's model has a field of this name.
    read: asks the source, returns JSON-able data; None when the thing does not exist on this node.
    need: the right without which the fact is unknown, in words; empty when an ordinary user can read it.
    hardware: belongs to the machine rather than to the moment. With a recording beside a live source (the
        lab), these come from the recording and all others are live.
    timeout_s: bound of the whole reader.
    """

    name: str
    read: Callable[[Source], Any]
    need: str = ""
    hardware: bool = True
    timeout_s: float = 10.0
