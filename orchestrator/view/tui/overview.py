"""The panel of a small screen: ranks, requests and the worst of the findings, as far as there is room. Pure."""

from __future__ import annotations

from rich.text import Text

from orchestrator.view.state import State
from orchestrator.view.tui.news import findings
from orchestrator.view.tui.ranks import rank_table
from orchestrator.view.tui.requests import requests


def overview(state: State, now_unix_s: float, width: int, height: int) -> Text:
    """Never higher than `height`."""
    parts = [rank_table(state, now_unix_s, width, height)]
    if state.engine is not None:
        parts.append(requests(state, now_unix_s, width, height))
    used = sum(part.plain.count("\n") + 2 for part in parts)
    if height - used > 0:
        parts.append(findings(state, now_unix_s, width, height - used))
    lines = Text("\n\n").join(parts).split("\n")
    return Text("\n").join(lines[:height])
