"""doctor: look at every node's hardware and software, and judge it.

Changes nothing by itself; with `deep` it puts load on the nodes, with `fix` it repairs what a person agrees to.
"""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from orchestrator import capture
from orchestrator.checks import ABSENT, CHECKS, REACHABLE, UNREAD, examine, exit_code
from orchestrator.checks.remedies import remedies
from orchestrator.deep import probe_all
from orchestrator.errors import ConfigError, Exit
from orchestrator.examination import Diagnosis, diagnose
from orchestrator.fix import Done, Shown, fix
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.plan.fabric import looked_up
from orchestrator.plan.image import content
from orchestrator.run import World
from orchestrator.verbs import Answer, Session
from orchestrator.view import doctor as view

Emit = Callable[[Said], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How to judge and what to do with the result."""

    ignore: tuple[str, ...] = ()
    strict: bool = False
    source: Path | None = None
    bundle: Path | None = None
    verbose: bool = False
    deep: bool = False
    fix: bool = False
    sudo: bool = False
    yes: bool = False


async def visit(session: Session, options: Options, console: Console | None) -> Answer:
    """Look; with `deep` load the nodes and look again; with `fix` repair and look again; judge the last look."""
    session.listen_for_interrupt()
    goal, _ = session.goal()
    async with session.world() as world:
        found = await diagnose(world, goal, options.ignore, sudo=options.sudo)
        if options.deep:
            await deepen(world, goal, found, session.emit)
            found = await diagnose(world, goal, options.ignore, sudo=options.sudo)
        if options.fix and await mend(world, found, options, session.emit):
            found = await diagnose(world, goal, options.ignore, sudo=options.sudo)
    return answer(found, options, console)


async def deepen(world: World, goal: Goal, found: Diagnosis, emit: Emit) -> None:
    """Run the load probes on every node that answered; the next look has their results."""

    def say(node: str, data: dict[str, Any]) -> None:
        emit(Said("note", f"{node}: {data.get('probe', '')}: {probe_words(data)}"))

    for failure in await probe_all(world.nodes, found.yard, say, collective(goal, found.facts)):
        emit(Said("warning", f"{failure.node}: {failure.message}"))


def probe_words(data: Mapping[str, Any]) -> str:
    """What a probe reported, for people: how far it is, or its values by name."""
    match data:
        case {"done": int(done), "total": int(total)} if total > 0:
            return f"{100 * done // total} %"
        case _:
            return ", ".join(
                f"{key} {value}" for key, value in data.items() if key != "probe" and value is not None
            )


def collective(goal: Goal, facts: ClusterFacts) -> dict[str, dict[str, Any]] | None:
    """Arguments of every node's rank of an all-reduce; None while the engine is not on every node.

    Each rank gets what was looked up on its own node: devices, GID index, interface of the sockets.
    """
    nodes = goal.ranked
    docker = goal.profile.engine.runtime == "docker"
    wanted = content(goal) if docker else ""
    if len(nodes) < 2 or any(node.name not in facts for node in nodes):
        return None
    if docker and any(
        (seen := facts[node.name].docker) is None or seen.image(wanted) is None for node in nodes
    ):
        return None
    if not docker and any(not node.engine_python for node in nodes):
        return None
    fabrics = looked_up(goal.cluster, facts)
    head = nodes[0]
    rendezvous = {
        "MASTER_ADDR": head.fabric,
        "MASTER_PORT": str(goal.port(head, goal.profile.ports.rendezvous)),
    }
    ranks = {}
    for rank, node in enumerate(nodes):
        links = fabrics[node.name].environment() if node.name in fabrics else {}
        env = {**rendezvous, **links, "RANK": str(rank), "WORLD_SIZE": str(len(nodes)), "NCCL_DEBUG": "INFO"}
        ranks[node.name] = {"env": env, "image": wanted, "python": node.engine_python or ""}
    return ranks


async def mend(world: World, found: Diagnosis, options: Options, emit: Emit) -> bool:
    """Show every safe repair with its undo, do what is agreed to. True when something was done."""

    def agree(shown: Shown) -> bool:
        typer.echo(f"{shown.remedy.node}: {shown.remedy.what} ({shown.remedy.check})", err=True)
        for command in shown.commands:
            typer.echo(f"    {command}", err=True)
        typer.echo(f"    undo: {shown.undo or 'none is needed'}", err=True)
        return options.yes or (sys.stdin.isatty() and typer.confirm("do it?", default=False, err=True))

    done = await fix(world.nodes, remedies(found.findings, found.yard), agree, sudo=options.sudo)
    for item in done:
        emit(_said(item))
    return any(item.outcome == "done" for item in done)


def _said(item: Done) -> Said:
    text = f"{item.shown.remedy.node}: {item.shown.remedy.what}: {item.outcome}"
    level = "note" if item.outcome in ("done", "declined") else "warning"
    return Said(level, f"{text}; {item.detail}" if item.detail else text)


def check_ids(ids: tuple[str, ...]) -> None:
    """ConfigError for an id to ignore that no check has."""
    known = [*(check.id for check in CHECKS), REACHABLE, UNREAD, ABSENT]
    problems = []
    for name in ids:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; see doctor --list"
            problems.append(f"--ignore: no check is called {name!r}{hint}")
    if problems:
        raise ConfigError(problems)


def from_capture(options: Options) -> Diagnosis:
    """Judge a saved capture. ConfigError when it is none."""
    if options.source is None:
        raise AssertionError("called without a capture")
    yard = capture.load(options.source, now_unix_s=time.time())
    return Diagnosis(yard, examine(yard, options.ignore))


def answer(found: Diagnosis, options: Options, console: Console | None) -> Answer:
    """Save the bundle if asked, show the report unless ``console`` is None, and give data and exit code."""
    if options.bundle is not None:
        capture.save(found.yard, options.bundle)
    if console is not None:
        view.report(console, found.yard, found.findings, verbose=options.verbose)
    data = view.data(found.yard, found.findings, strict=options.strict)
    return Answer(data, Exit(exit_code(found.findings, strict=options.strict)))
