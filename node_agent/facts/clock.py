"""The clock, and whether anything keeps it right."""

from __future__ import annotations

import time
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import lines

COMMAND_TIMEOUT_S = 3.0


def parse_timedatectl(text: str) -> bool | None:
    """NTPSynchronized of `timedatectl show`; None when it does not say."""
    for item in lines(text):
        name, _, value = item.partition("=")
        if name.strip() == "NTPSynchronized":
            return {"yes": True, "no": False}.get(value.strip())
    return None


def read(source: Source) -> dict[str, Any]:
    """`unix_s` is taken last, so that it is as fresh as the answer."""
    shown = source.run("timedatectl", "show", timeout_s=COMMAND_TIMEOUT_S)
    synchronized = parse_timedatectl(shown.out) if shown and shown.status == 0 else None
    return {"synchronized": synchronized, "unix_s": time.time()}


READER = Reader("clock", read, hardware=False)
