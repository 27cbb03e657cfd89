"""The top of the screen: the one sentence that matters. Pure."""

from __future__ import annotations

from rich.text import Text

from orchestrator.view.headline import generation, situation
from orchestrator.view.state import State
from orchestrator.view.tui.styles import DIM, MARKS
from orchestrator.view.tui.table import clipped
from orchestrator.view.tui.words import bar, number


def headline(state: State, now_unix_s: float, width: int) -> Text:
    """Two lines: the sentence, and what is served or how far the boot is."""
    found = situation(state, now_unix_s)
    mark, style = MARKS[found.kind]
    first = Text(f"{mark} {clipped(found.sentence, width - 2)}", style=style)
    parts = [state.deployment or "no deployment"]
    if (start := generation(state)) is not None:
        parts.append(f"generation {start}")
    if found.progress is not None:
        parts.append(bar(found.progress, max(8, min(40, width - 48))))
    elif state.engine is not None and found.kind in {"serving", "degraded"}:
        parts.append(f"{number(state.engine.generated_per_s, 1)} tok/s")
    if len(found.reasons) > 1 or (found.reasons and found.kind not in {"degraded", "down"}):
        parts.append(f"{len(found.reasons)} reasons, f shows them")
    if state.restarts:
        parts.append(f"{state.restarts} restarts")
    return Text("\n").join([first, Text(clipped("  " + " · ".join(parts), width), style=DIM)])
