"""Results of earlier load probes (`doctor --deep`), kept in the node's own folder."""

from __future__ import annotations

import json
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source, UnreadableError

PLACE = "/sparkyard/probes.json"  # below the node's own folder; survives a reboot


def parse(text: str) -> dict[str, Any]:
    """Raises UnreadableError when it is no JSON object."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{PLACE}: not JSON: {str(error)[:100]}") from error
    if not isinstance(data, dict):
        raise UnreadableError(f"{PLACE}: not an object")
    return data


def read(source: Source) -> dict[str, Any] | None:
    """None when no probe has run here."""
    text = source.text(PLACE)
    return None if text is None else parse(text)


READER = Reader("probes", read, hardware=False)
