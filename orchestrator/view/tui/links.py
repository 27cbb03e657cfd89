"""The topology: cables with their ends and live rates. Pure."""

from __future__ import annotations

from rich.text import Text

from orchestrator.view.headline import cables, slow_rails
from orchestrator.view.node import LinkView, NodeView
from orchestrator.view.state import State
from orchestrator.view.tui.styles import BAD, DIM, WARN
from orchestrator.view.tui.table import clipped
from orchestrator.view.tui.words import count, gigabits, spark

HALVES = {"0000": "a", "0002": "b"}
"""PCI domain → the letter by which the two x4 links of the card are told apart."""
SPARK_MAX = 24


def links(state: State, now_unix_s: float, width: int, height: int) -> Text:
    """Cables with their two ends and live rates; what is broken first."""
    views = {
        (node.name, view.link.netdev): (node, view) for node in state.nodes.values() for view in node.links
    }
    rows: list[tuple[bool, Text]] = []
    shown = set()
    for cable in cables(state):
        ends = [end for end in (cable.a, cable.b) if end is not None]
        shown.update(ends)
        rows.append(_cable([views[end] for end in ends], now_unix_s, width))
    for end, (node, view) in views.items():
        if end not in shown and view.wanted:
            rows.append(_cable([(node, view)], now_unix_s, width))
    if not rows:
        return Text("no RDMA link seen on any node", style=DIM)
    rows.sort(key=lambda row: not row[0])
    return Text("\n").join(line for _, line in rows[:height])


def _cable(ends: list[tuple[NodeView, LinkView]], now_unix_s: float, width: int) -> tuple[bool, Text]:
    known = all(node.known(now_unix_s) for node, _ in ends)
    up = all(view.link.up for _, view in ends)
    slow = [
        gbps for node, view in ends for netdev, gbps in slow_rails(node).items() if netdev == view.link.netdev
    ]
    view = ends[0][1]
    names = [f"{end.name} {link.link.cage}{_half(link)}" for end, link in ends]
    joint = " ═ " if known and up else " ╳ " if known else " ? "
    text = Text(
        clipped(
            joint.join(f"{name:<13}" for name in names)
            if len(names) > 1
            else f"{names[0]:<13}{joint}switch       ",
            30,
        ).ljust(30)
    )
    if not known:
        text.append(" not known", style=WARN)
    elif not up:
        down = [
            f"{end.name} {link.link.netdev} {link.link.state.lower() or 'down'}"
            for end, link in ends
            if not link.link.up
        ]
        text.append(" " + ", ".join(down), style=BAD)
    else:
        notes = Text("")
        if slow:
            notes.append(f" load test {min(slow):.0f} Gb/s", style=BAD)
        if errors := sum(link.link.errors for _, link in ends):
            notes.append(f" {count(errors)} errors", style=WARN)
        text.append(f" ↑{gigabits(view.sent_per_s):>5} ↓{gigabits(view.received_per_s):>5} Gb/s ")
        room = width - text.cell_len - notes.cell_len
        text.append(spark(view.history, max(0, min(SPARK_MAX, room))), style="blue")
        text.append_text(notes)
    text.truncate(width)
    return (not up or bool(slow) or not known), text


def _half(view: LinkView) -> str:
    return HALVES.get(view.link.half, "")
