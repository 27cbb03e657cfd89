"""Findings and the event log. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from rich.text import Text

from orchestrator.view.headline import situation
from orchestrator.view.state import State, worst_first
from orchestrator.view.tui.styles import DIM, LEVELS, SEVERITIES, WARN
from orchestrator.view.tui.table import clipped


def findings(state: State, now_unix_s: float, width: int, height: int) -> Text:
    """Reasons of the situation, then what the checks found, worst first."""
    lines = [
        Text(clipped(f"▲ {reason}", width), style=WARN) for reason in situation(state, now_unix_s).reasons
    ]
    for finding in worst_first(state.findings):
        letter, style = SEVERITIES[finding.severity]
        place = f"{finding.node} {finding.link}".strip() or "cluster"
        because = f" (because of {finding.because_of})" if finding.because_of else ""
        ignored = " (ignored)" if finding.ignored else ""
        text = f"{letter} {place}: {finding.measured}{because}{ignored} [{finding.check}]"
        lines.append(Text(clipped(text, width), style=style))
        if finding.remedy and height > 12 and not finding.ignored:
            lines.append(Text(clipped(f"    {finding.remedy}", width), style=DIM))
    if not lines:
        return Text("nothing found", style=DIM)
    if len(lines) > height > 1:
        rest = len(lines) - height + 1
        lines = [*lines[: height - 1], Text(f"{rest} more lines: f", style=DIM)]
    return Text("\n").join(lines)


def events(state: State, width: int, height: int, wanted: str, zone: tzinfo = UTC) -> Text:
    """The newest lines that contain `wanted`, the newest last."""
    lines = []
    for line in state.log:
        text = f"{line.node + ': ' if line.node else ''}{line.text}"
        if wanted.lower() in text.lower() or wanted.lower() == line.level:
            letter, style = LEVELS.get(line.level, LEVELS["note"])
            clock = datetime.fromtimestamp(line.at_unix_s, zone).strftime("%H:%M:%S")
            lines.append(Text(clipped(f"{clock} {letter} {text}", width), style=style))
    if not lines:
        return Text(f"no event with {wanted!r}" if wanted else "nothing happened yet", style=DIM)
    return Text("\n").join(lines[-height:])
