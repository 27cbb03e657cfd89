"""A run while it goes on: a table on a terminal, plain lines in a pipe. Standard output stays free for
data."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.bench.export import told
from orchestrator.bench.obstacles import LEADING
from orchestrator.bench.progress import (
    BenchEvent,
    CellBegan,
    CellEnded,
    Remarked,
    RoundEnded,
    Ticked,
)
from orchestrator.bench.record import Measure, Row
from orchestrator.view.terminal import Terminal

REFRESH_PER_S = 4
RATES = {Measure.DECODE: "stream_tok_s", Measure.PREFILL: "ttft_p50_ms"}


class Progress:
    """Folds events into what is shown."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.remarks: list[str] = []
        self.cell: CellBegan | None = None
        self.round = 0
        self.tick: Ticked | None = None
        self.began_s = time.monotonic()

    def take(self, event: BenchEvent) -> str | None:
        """Applies one event; gives the plain line that it is worth, if any."""
        match event:
            case CellBegan():
                self.cell, self.round, self.tick = event, 0, None
                return None
            case Ticked():
                self.tick = event
                return None
            case RoundEnded():
                self.round = event.number
                return None
            case CellEnded():
                self.rows.append(event.row)
                return f"{_name(event.row)}: {_figures(event.row)}{''.join(f'; {note}' for note in event.row.notes)}"
            case Remarked():
                self.remarks.append(event.text)
                return event.text

    def now(self) -> str:
        """The line about the row that is being measured."""
        if self.cell is None:
            return "looking at the endpoint"
        cell, tick = self.cell, self.tick
        rate = f", {tick.events} events in {tick.at_s:.1f} s" if tick else ""
        place = f"{self.round} of {cell.rounds} rounds done" if self.round else "warming up"
        return f"{cell.measure} {cell.kind} × {cell.streams}, {cell.tokens} tokens: {place}{rate}"

    def __rich__(self) -> Group:
        table = Table("measure", "kind", "streams", "cache", "prompt", "figure", "also", title=None)
        for row in self.rows:
            table.add_row(
                row.measure,
                row.kind,
                str(row.streams),
                row.cache,
                str(row.prompt_tokens or "–"),
                _figures(row),
                _also(row),
            )
        elapsed_s = time.monotonic() - self.began_s
        return Group(
            table,
            *(Text(remark, style="yellow") for remark in self.remarks),
            Text(
                f"{elapsed_s:.0f} s  {self.now()}  (Ctrl-C ends the run and keeps the figures)", style="dim"
            ),
        )


def _name(row: Row) -> str:
    return f"{row.measure} {row.kind} × {row.streams} {row.cache} {row.prompt_tokens or '–'} tokens"


def _figures(row: Row) -> str:
    figure = row.figure(LEADING[row.measure])
    return "–" if figure is None else f"{told(figure)} {figure.unit}"


def _also(row: Row) -> str:
    name = RATES.get(row.measure)
    figure = row.figure(name) if name else None
    return "" if figure is None else f"{figure.name} {told(figure)}"


@contextmanager
def live(console: Console | None = None) -> Iterator[Callable[[BenchEvent], None]]:
    """Gives a function that shows events, on standard error."""
    console = console or Terminal(file=sys.stderr)
    progress = Progress()
    if console.is_terminal:
        with Live(progress, console=console, refresh_per_second=REFRESH_PER_S) as view:

            def show(event: BenchEvent) -> None:
                progress.take(event)
                view.update(progress)

            yield show
        return

    def say(event: BenchEvent) -> None:
        line = progress.take(event)
        if line is not None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    yield say
