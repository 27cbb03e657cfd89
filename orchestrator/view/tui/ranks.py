"""Ranks with phase and progress; the jobs that prepare them while there are none. Pure."""

from __future__ import annotations

from rich.text import Text

from orchestrator.view.headline import SHARE, ranks
from orchestrator.view.state import State
from orchestrator.view.tui.styles import BAD, BUSY, DIM, GOOD, WARN
from orchestrator.view.tui.table import Cell, Column, clipped, draw
from orchestrator.view.tui.words import UNKNOWN, bar, count, gib, span

RANK_COLUMNS = (
    Column("RANK", 4),
    Column("NODE", 10),
    Column("PHASE", 8),
    Column("", 10, 2),
    Column("FOR", 7, 0, right=True),
    Column("LOW GiB", 7, 1, right=True),
    Column("WEIGHTS", 7, 4, right=True),
    Column("KV tok", 7, 3, right=True),
    Column("LOG", 5, 2, right=True),
    Column("", 40, 5),
)


def rank_table(state: State, now_unix_s: float, width: int, height: int) -> Text:
    """Ranks with their phase and how long they are in it."""
    rows: list[list[Cell]] = []
    ended = []
    for node, rank in ranks(state):
        now = rank.now
        bad = now.phase == "ended" and not now.ended.startswith("stopped")
        known = node.known(now_unix_s)
        style = BAD if bad else WARN if not known else GOOD if now.phase == "ready" else BUSY
        since = (now.phases or {}).get(now.phase)
        steps = _step_note(state, node.name)
        rows.append(
            [
                f"r{now.rank}",
                node.name,
                Text(now.phase if known or bad else "unknown", style=style),
                Text(bar(SHARE[now.phase], 10), style=style),
                span(now_unix_s - since) if since is not None and known else UNKNOWN,
                gib(now.memory_low_water_bytes),
                gib(now.weights_bytes),
                count(now.kv_tokens),
                span(now_unix_s - now.last_log_unix_s) if now.last_log_unix_s else UNKNOWN,
                steps,
            ]
        )
        if bad:
            ended.append(Text(clipped(f"r{now.rank} {now.ended}", width), style=BAD))
    if not rows:
        return _jobs_or(state, width, "no rank has been started")
    text = draw(RANK_COLUMNS, rows, width)
    for line in ended[: max(0, height - len(rows) - 1)]:
        text = text + Text("\n") + line
    return text


def _step_note(state: State, node: str) -> str:
    if state.run is None:
        return ""
    for (name, _), step in state.run.steps.items():
        if name == node and step.total:
            return f"{step.note} {count(step.done)}/{count(step.total)} {step.unit}".strip()
    return ""


def _jobs_or(state: State, width: int, otherwise: str) -> Text:
    lines = []
    for node in state.nodes.values():
        for job in node.sample.jobs if node.sample is not None else ():
            if job.state == "running" and job.total > 0:
                share = job.done / job.total
                text = (
                    f"{node.name}  {job.kind}  {bar(share, 20)} {share:.0%} of {count(job.total)} {job.unit}"
                )
                lines.append(Text(clipped(text, width)))
    return Text("\n").join(lines) if lines else Text(otherwise, style=DIM)
