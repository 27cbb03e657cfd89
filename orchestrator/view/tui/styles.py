"""Colours and signs. Each colour has a sign or a word beside it, so that nothing is lost without colours."""

from __future__ import annotations

from orchestrator.model.finding import Severity
from orchestrator.view.headline import Kind

GOOD, WARN, BAD, DIM, BUSY = "green", "yellow", "bold red", "dim", "cyan"
MARKS: dict[Kind, tuple[str, str]] = {
    "serving": ("●", GOOD),
    "degraded": ("▲", WARN),
    "booting": ("◔", BUSY),
    "down": ("✖", BAD),
    "stopped": ("■", DIM),
    "unknown": ("?", WARN),
}
LEVELS = {"error": ("E", BAD), "warning": ("W", WARN), "note": (" ", "")}
SEVERITIES = {
    Severity.ERROR: ("E", BAD),
    Severity.WARNING: ("W", WARN),
    Severity.UNKNOWN: ("?", WARN),
    Severity.NOTE: ("n", DIM),
}
