"""doctor: look at every node's hardware and software, and judge it.

Changes nothing by itself; with `deep` it puts load on the nodes, with `fix` it repairs what a person agrees to.
"""

from __future__ import annotations

import asyncio
import difflib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console

from orchestrator import capture
from orchestrator.checks import ABSENT, CHECKS, REACHABLE, UNREAD, examine, exit_code
from orchestrator.checks.check import Node as SeenNode
from orchestrator.checks.check import Yard
from orchestrator.checks.remedies import remedies
from orchestrator.deep import probe_all, with_pings
from orchestrator.each import look
from orchestrator.errors import ConfigError, Exit
from orchestrator.fix import Done, Shown, fix
from orchestrator.model.cluster import Node as ClusterNode
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.finding import Finding
from orchestrator.model.goal import Goal
from orchestrator.model.hardware import Hardware
from orchestrator.model.profile import EnvSetting
from orchestrator.model.step import Failure
from orchestrator.plan.fabric import looked_up
from orchestrator.plan.image import content
from orchestrator.remote.node import Ask, Node, reply
from orchestrator.run import World
from orchestrator.verbs import Answer, Session
from orchestrator.view import doctor as view

Emit = Callable[[Said], None]
CLOCK_TIMEOUT_S = 5.0
CLOCK_ANSWER_S = 0.5
"""Half of it is the error of an offset; `clock.skew` speaks from one second on."""


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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was looked at, and what the checks say."""

    yard: Yard
    findings: tuple[Finding, ...]
    facts: ClusterFacts = field(default_factory=dict)


async def diagnose(
    world: World, goal: Goal, ignore: tuple[str, ...] = (), *, sudo: bool = False
) -> Diagnosis:
    """One look with hardware, pings along the links, one judgement."""
    args = {name: {**world.look_args().get(name, {}), "hardware": True, "sudo": sudo} for name in world.nodes}
    facts, failures = await look(world.nodes, args)
    offsets = await clock_offsets(world.nodes, facts)
    yard = await with_pings(world.nodes, make_yard(goal, facts, failures, time.time(), offsets))
    return Diagnosis(yard, examine(yard, ignore), facts)


async def clock_offsets(nodes: Mapping[str, Node], names: Iterable[str]) -> dict[str, float]:
    """Each node's clock minus this one, seconds: asked on a connection that is open, so it answers in milliseconds.

    A node that takes longer than `CLOCK_ANSWER_S` is left out: how slow it is would be taken for its clock.
    """
    found: dict[str, float] = {}

    async def one(name: str) -> None:
        begin = time.time()
        answer = await reply(nodes[name], Ask("ping"), timeout_s=CLOCK_TIMEOUT_S)
        end = time.time()
        theirs = answer.value.get("now_unix_s")
        if answer.failure is None and isinstance(theirs, (int, float)) and 0 <= end - begin <= CLOCK_ANSWER_S:
            found[name] = float(theirs) - (begin + end) / 2

    await asyncio.gather(*(one(name) for name in names))
    return found


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


def make_yard(
    goal: Goal,
    facts: ClusterFacts,
    failures: tuple[Failure, ...],
    now_unix_s: float,
    offsets: Mapping[str, float],
) -> Yard:
    """The nodes as the checks see them. ``now_unix_s`` is this clock, ``offsets`` how far each node's is from it."""
    why = {failure.node: failure.message for failure in failures}
    profile = goal.profile
    return Yard(
        nodes=tuple(_node(goal, node, facts, why, offsets.get(node.name)) for node in goal.cluster.nodes),
        now_unix_s=now_unix_s,
        topology=goal.cluster.topology,
        docker=profile.engine.runtime == "docker",
        tp=profile.parallel.tp,
        ring_library=profile.nccl is not None,
        environment={
            entry.env: str(entry.value) for entry in profile.settings if isinstance(entry, EnvSetting)
        },
    )


def _node(
    goal: Goal, node: ClusterNode, facts: ClusterFacts, why: dict[str, str], offset_s: float | None
) -> SeenNode:
    here = facts.get(node.name)
    if here is None:
        return SeenNode(node.name, unreachable=why.get(node.name, "did not answer"))
    try:
        hardware = Hardware.model_validate(here.hardware) if here.hardware is not None else None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return SeenNode(node.name, unreachable=f"its hardware facts are not usable: {where}: {first['msg']}")
    ports = goal.profile.ports
    ours = any(rank.alive and rank.deployment == goal.profile.name for rank in here.ranks)
    wanted = {ports.api} | ({ports.gate, ports.rendezvous} if node.name == goal.head.name else set())
    return SeenNode(
        node.name,
        hardware=hardware,
        offset_s=offset_s,
        # While our own rank serves, its ports are taken by whom they should be.
        ports=() if ours else tuple(sorted(goal.port(node, port) for port in wanted)),
        paths=(node.root,),
    )


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
