"""`explain`: what a failed run left, and the likely cause of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from orchestrator.errors import ConfigError, Exit
from orchestrator.explain import folder as folders
from orchestrator.explain.judge import explain, report
from orchestrator.model.plain import clean
from orchestrator.verbs import Answer, Session
from orchestrator.watch import evidence


def from_folder(source: Path) -> Answer:
    """Judge what lies in ``source``. Undetermined when nothing in it is known."""
    logs = folders.read(source)
    causes = explain(logs)
    return Answer(report(causes, str(source), logs), Exit.FINE if causes else Exit.UNDETERMINED)


async def from_nodes(session: Session, below: Path) -> Answer:
    """Fetch what the nodes have now, keep it, and judge it."""
    async with session.world() as world:
        place = await evidence.save(world.nodes, session.profile.name, below, "explain")
    return from_folder(place)


def newest(below: Path) -> Path:
    """The newest folder of evidence. ConfigError when there is none."""
    found = folders.newest(below)
    if found is None:
        raise ConfigError([f"{below}: no evidence was saved yet; --now fetches what the nodes have"])
    return found


def show(data: dict[str, Any], out: Console) -> None:
    """The headline first, each cause with its lines and what to do."""
    out.print(f"[dim]{escape(data['source'])}: {data['read']['files']} files[/]", highlight=False)
    if not data["causes"]:
        out.print("nothing that is known: please look at the last lines of every rank", highlight=False)
    for place, cause in enumerate(data["causes"]):
        style = "bold red" if place == 0 and cause["level"] == "cause" else "yellow"
        ranks = f" (rank {', '.join(map(str, cause['ranks']))})" if cause["ranks"] else ""
        out.print(f"[{style}]{escape(cause['title'])}[/]{ranks} [dim]{cause['cause']}[/]", highlight=False)
        if cause["note"]:
            out.print(f"  {escape(cause['note'])}", highlight=False)
        for line in cause["lines"]:
            text = f"  {line['file']}:{line['line']}: {clean(line['text'])}"
            out.print(text, markup=False, highlight=False, style="dim")
        out.print(f"  → {escape(cause['remedy'])}", highlight=False)
