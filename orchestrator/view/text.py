"""Text for people, on standard error: rich progress on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from typing import Any, assert_never

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from orchestrator.model import event as events
from orchestrator.model.plain import clean
from orchestrator.model.step import Failure

PLAIN_EVERY_S = 15.0
"""In a pipe, progress of one piece of work is a line at most this often, and whenever its note changes."""
EVIDENCE_LINES = 12


class TextView:
    """Draws events as they come."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._live = console.is_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[node]}", style="bold"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._said: dict[tuple[str, str], float] = {}
        self._notes: dict[tuple[str, str], str] = {}

    def __enter__(self) -> TextView:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()

    def emit(self, event: events.Event) -> None:
        """Draw one event."""
        match event:
            case events.RunStarted(verb=verb, profile=profile, nodes=nodes):
                self._print(f"[bold]{verb}[/] {profile} on {', '.join(nodes)}")
            case events.Looked(failures=failures):
                for failure in failures:
                    self._print(f"  [yellow]{escape(failure.node)}: {escape(clean(failure.message))}[/]")
            case events.StageStarted():
                self._stage(event)
            case events.Progress():
                self._show_progress(event)
            case events.StepDone(node=node, what=what, seconds=seconds):
                self._end(node, what)
                self._print(f"  [green]✓[/] {escape(node)}: {escape(what)} [dim]{seconds:.1f} s[/]")
            case events.StepFailed(node=node, what=what, failure=failure):
                self._end(node, what)
                self._print(f"  [red]✗[/] {escape(node)}: {escape(what)}: {escape(clean(failure.message))}")
            case events.WaitDone(node=node, what=what, seconds=seconds):
                self._end_all(node)
                self._print(f"  [green]✓[/] {escape(node)}: {escape(what)} [dim]{seconds:.1f} s[/]")
            case events.PredictionMissed(node=node, field=field):
                self._print(
                    f"  [yellow]{escape(node)}: {field} is not what was predicted (see events.jsonl)[/]"
                )
            case events.Said(level=level, text=text):
                style = "yellow" if level == "warning" else "dim"
                self._print(f"[{style}]{escape(clean(text))}[/]")
            case events.RunEnded():
                self._ended(event)
            case _:
                assert_never(event)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _stage(self, event: events.StageStarted) -> None:
        self._tasks.clear()
        self._print(f"[bold cyan]{escape(event.title)}[/]")
        if self._verbose:
            for node, what, why in (*event.steps, *event.waits):
                self._print(f"    [dim]{escape(node)}: {escape(what)} ({escape(why)})[/]")

    def _show_progress(self, event: events.Progress) -> None:
        key = (event.node, event.what)
        amount = _amount(event)
        if self._live:
            if key not in self._tasks:
                self._tasks[key] = self._progress.add_task(
                    escape(event.what), total=event.total or None, node=escape(event.node), amount=""
                )
            total = event.total or None
            self._progress.update(self._tasks[key], completed=event.done, total=total, amount=escape(amount))
            return
        now = time.monotonic()
        new_note = bool(event.note) and self._notes.get(key) != event.note
        if new_note or now - self._said.get(key, -PLAIN_EVERY_S) >= PLAIN_EVERY_S:
            self._said[key] = now
            self._notes[key] = event.note
            self._print(f"    {escape(event.node)}: {escape(event.what)}: {escape(amount)}")

    def _end(self, node: str, what: str) -> None:
        task = self._tasks.pop((node, what), None)
        if task is not None:
            self._progress.remove_task(task)

    def _end_all(self, node: str) -> None:
        for key in [key for key in self._tasks if key[0] == node]:
            self._end(*key)

    def _ended(self, event: events.RunEnded) -> None:
        for failure in event.failures:
            self.failure(failure)
        if event.exit_code == 0:
            self._print(f"[green]{event.verb}: done[/] [dim]{event.seconds:.1f} s[/]")
        else:
            self._print(f"[red]{event.verb}: exit {event.exit_code}[/] [dim]{event.seconds:.1f} s[/]")

    def failure(self, failure: Failure) -> None:
        """One failure: node, what, evidence, remedy."""
        self._print(f"[red]{escape(failure.node)}[/]: {escape(clean(failure.message))}")
        for line in failure.evidence[-EVIDENCE_LINES:]:
            self._print(f"    [dim]│ {escape(clean(line))}[/]")
        if failure.remedy:
            self._print(f"    → {escape(failure.remedy)}")


def _amount(event: events.Progress) -> str:
    if event.note and not event.total:
        return clean(event.note)
    if event.unit == "s":
        left = event.total - event.done
        rest = f"about {left:,} s left" if left > 0 else f"earlier boots took {event.total:,} s"
        return f"{clean(event.note)}, {event.done:,} s, {rest}"
    if event.unit == "bytes":
        of = f" of {event.total / 1e6:,.1f}" if event.total else ""
        return f"{event.done / 1e6:,.1f}{of} MB {clean(event.note)}".rstrip()
    of = f" of {event.total:,}" if event.total else ""
    return f"{event.done:,}{of} {event.unit} {clean(event.note)}".rstrip()


def plan_text(console: Console, plan: dict[str, Any]) -> None:
    """A plan, as `plan` and `--dry-run` show it."""
    if plan["stages"] is None:
        console.print(f"{plan['verb']}: no node answered, so its stages are not known", highlight=False)
    elif not plan["stages"] and not plan["blocked"]:
        console.print(f"{plan['verb']}: nothing to do", highlight=False)
    for number, stage in enumerate(plan["stages"] or (), 1):
        console.print(f"[bold]{number}. {escape(stage['title'])}[/]", highlight=False)
        for step in stage["steps"]:
            console.print(
                f"   {step['node']}: {escape(step['action'])} [dim]({escape(step['why'])})[/]",
                highlight=False,
            )
        for wait in stage["waits"]:
            text = (
                f"   {wait['node']}: wait until {escape(wait['until'])}, at most {wait['deadline_s']:.0f} s"
            )
            console.print(f"{text} [dim]({escape(wait['why'])})[/]", highlight=False)
    for failure in plan["blocked"]:
        console.print(f"[red]blocked: {failure['node']}[/]: {escape(failure['message'])}", highlight=False)
        if failure["remedy"]:
            console.print(f"   → {escape(failure['remedy'])}", highlight=False)
    for line in plan.get("lines", ()):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def status_text(console: Console, status: dict[str, Any]) -> None:
    """Desired against observed."""
    word = "[green]serving[/]" if status["serving"] else "[red]not serving[/]"
    console.print(
        f"{status['deployment']}: {word}, desired {status['desired']}, generation {status['generation']}",
        highlight=False,
    )
    if status["serving"]:
        console.print(f"{status['url']}  model {status['model']}", highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in (
        "rank",
        "node",
        "desired",
        "phase",
        "up",
        "memory available",
        "low water",
        "weights",
        "rows read",
        "store",
        "image",
    ):
        table.add_column(title)
    for entry in status["ranks"]:
        up = (
            f"{time.time() - entry['since_unix_s']:.0f} s"
            if entry["alive"] and entry["since_unix_s"]
            else "–"
        )
        table.add_row(
            str(entry["rank"]),
            entry["node"],
            entry["desired"],
            entry["phase"] if entry["answered"] else "[yellow]no answer[/]",
            up,
            _gib(entry["memory_available_bytes"]),
            _gib(entry["memory_low_water_bytes"]),
            entry["weights_from"] or "–",
            "–" if entry["rows_read"] is None else f"{entry['rows_read']:,}",
            (entry["store"] or "–")[:12],
            (entry["image"] or entry["engine"] or "–")[:12],
        )
    console.print(table)
    for failure in status["unanswered"]:
        console.print(f"[yellow]{failure['node']}: {escape(failure['message'])}[/]", highlight=False)


def _gib(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**30:.1f} GiB"
