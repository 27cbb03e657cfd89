"""The table of nodes. Pure."""

from __future__ import annotations

from rich.text import Text

from orchestrator.view.headline import MARGIN_LOW_BYTES
from orchestrator.view.node import NodeView
from orchestrator.view.state import State
from orchestrator.view.tui.styles import BAD, BUSY, DIM, GOOD, WARN
from orchestrator.view.tui.table import Cell, Column, draw
from orchestrator.view.tui.words import UNKNOWN, gib, gigabits, number, percent, span, spark

PRESSURE_HIGH_PERCENT = 10.0
GPU_HOT_C = 85.0
SPARK_MIN = 10
"""Columns from this width on are sparklines: empty in a gap, where a number is a dash."""

NODE_COLUMNS = (
    Column("NODE", 10),
    Column("RANK", 11),
    Column("MEM GiB", 7, 0, right=True),
    Column("FLOOR+", 6, 1, right=True),
    Column("MEM", 10, 4),
    Column("CPU", 4, 2, right=True),
    Column("GPU MHz", 7, 1, right=True),
    Column("W", 4, 3, right=True),
    Column("°C", 3, 3, right=True),
    Column("NET Gb/s", 8, 1, right=True),
    Column("NET", 16, 5),
    Column("PSI", 4, 6, right=True),
    Column("DISK TiB", 8, 7, right=True),
    Column("SEEN", 6, 8, right=True),
)


def nodes(state: State, now_unix_s: float, width: int, selected: int | None) -> Text:
    """One row a node."""
    return draw(
        NODE_COLUMNS,
        [_node_row(node, now_unix_s) for node in state.nodes.values()],
        width,
        selected,
    )


def _node_row(node: NodeView, now_unix_s: float) -> list[Cell]:
    sample = node.sample
    if sample is None or not node.known(now_unix_s):
        seen = span(now_unix_s - node.at_unix_s) if sample is not None else "never"
        gap: list[Cell] = ["" if column.width >= SPARK_MIN else UNKNOWN for column in NODE_COLUMNS[2:-1]]
        return [Text(node.name, style=WARN), Text(f"silent {seen}", style=WARN), *gap, seen]
    rank = node.ranks[-1].now if node.ranks else None
    phase = Text("no rank", style=DIM)
    if rank is not None:
        style = {"ready": GOOD, "ended": BAD if not rank.ended.startswith("stopped") else DIM}.get(
            rank.phase, BUSY
        )
        phase = Text(f"{rank.rank} {rank.phase}", style=style)
    margin = node.margin_bytes
    low = margin is not None and margin < MARGIN_LOW_BYTES
    total = _traffic(node)
    gpu = node.gpu
    pressure = sample.memory.pressure_some
    history = _node_history(node)
    hot = gpu is not None and (gpu.temperature_c or 0) >= GPU_HOT_C
    watts = sample.rails_w.get("sys_total") or (gpu.power_w if gpu else None)
    return [
        node.name,
        phase,
        gib(sample.memory.available_bytes),
        Text(gib(margin), style=BAD if low else ""),
        Text(spark(node.available, 10, float(node.floor_bytes or 0)), style="blue"),
        percent(node.processor_busy),
        number(gpu.sm_mhz if gpu else None),
        number(watts),
        Text(number(gpu.temperature_c if gpu else None), style=BAD if hot else ""),
        gigabits(total),
        Text(spark(history, 16), style="blue"),
        Text(number(pressure, 0), style=WARN if (pressure or 0) > PRESSURE_HIGH_PERCENT else ""),
        number(sample.disk.free_bytes / 2**40, 1),
        span(now_unix_s - node.at_unix_s),
    ]


def _traffic(node: NodeView) -> float | None:
    rates = [
        value for link in node.links for value in (link.sent_per_s, link.received_per_s) if value is not None
    ]
    return sum(rates) if rates else None


def _node_history(node: NodeView) -> tuple[float, ...]:
    found = [link.history for link in node.links if link.history]
    length = min((len(history) for history in found), default=0)
    return tuple(sum(history[-length + index] for history in found) for index in range(length))
