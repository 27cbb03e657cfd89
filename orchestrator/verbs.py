"""Each verb as a sentence: open the world, converge or observe, say how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator import boots
from orchestrator.each import each, look
from orchestrator.errors import Exit
from orchestrator.ledgers import ledgers, published
from orchestrator.model.cluster import Cluster
from orchestrator.model.event import Event, RunEnded, RunStarted, Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal, Package
from orchestrator.model.profile import Profile
from orchestrator.model.report import failures_json, plan_json, run_json, status_json
from orchestrator.model.step import Failure, SetDesired, Stage, StartRank, StopRank
from orchestrator.package import build_package
from orchestrator.plan import serve as serve_plan
from orchestrator.plan import up
from orchestrator.plan.fit import Budget
from orchestrator.plan.measured import corrections
from orchestrator.plan.proven import Item
from orchestrator.plan.proven import failures as unproven_items
from orchestrator.preflight import preflight
from orchestrator.proof import proof_json, prove
from orchestrator.remote.node import Ask, Node, reply
from orchestrator.remote.nodes import nodes
from orchestrator.run import Outcome, WallClock, World, converge, dry_run, observe
from orchestrator.watch import evidence

SMOKE_TIMEOUT_S = 300.0
REST_TIMEOUT_S = 30.0
STOP_LEASE_WAIT_S = 120.0
"""Whoever acts now notices within a look and a step that it shall not serve, and ends what it started."""
STARTING = frozenset({"serve", "up", "restart"})
LEDGER = "ledger"
"""`--ignore ledger`: start although the ledgers say that it does not fit."""

Emit = Callable[[Event], None]


@dataclass
class Session:
    """What one call of the command line works with."""

    profile: Profile
    cluster: Cluster
    emit: Emit
    strict_conformance: bool = False
    ignore: tuple[str, ...] = ()
    """Items of the proof that are warnings at most."""
    package: Package | None = None
    """An engine package that the nodes have already, instead of this checkout's own."""
    evidence: Path | None = None
    """Folder for the evidence of starts that fail; none is kept without it."""
    interrupted: bool = field(default=False, init=False)

    def goal(self) -> tuple[Goal, dict[str, bytes]]:
        """The goal, and the blobs that the controller itself has."""
        if self.package is not None:
            return Goal(self.profile, self.cluster, self.package), {}
        package = build_package()
        goal = Goal(self.profile, self.cluster, Package(package.digest, len(package.content)))
        return goal, {package.digest: package.content}

    def budget(self, verb: str) -> Callable[[], Budget] | None:
        """What the ledgers judge a start with; None for other verbs, and when the person takes the risk."""
        return None if verb not in STARTING or LEDGER in self.ignore else published

    async def measured_budget(self, verb: str, world: World) -> Callable[[], Budget] | None:
        """As `budget`, with what earlier boots of this profile measured, from their records on the nodes."""
        wanted = self.budget(verb)
        if wanted is None:
            return None
        found = corrections(await boots.read(world, self.profile.name), self.profile.identity)
        return cache(lambda: replace(wanted(), corrections=found))

    @asynccontextmanager
    async def world(
        self, payloads: dict[str, bytes] | None = None, held: Mapping[str, Node] | None = None
    ) -> AsyncIterator[World]:
        """Connections to the nodes, closed at the end; or those that somebody else `held` and will close."""
        asked: Mapping[str, Node] = held if held is not None else nodes(self.cluster)
        holder = f"{os.environ.get('USER', 'user')}@{socket.gethostname()} pid {os.getpid()}"
        world = World(
            nodes=asked,
            cluster=self.cluster,
            emit=self.emit,
            clock=WallClock(),
            holder=holder,
            payloads=payloads or {},
            strict_conformance=self.strict_conformance,
            docker=self.profile.engine.runtime == "docker",
            stopping=lambda: self.interrupted,
        )
        try:
            yield world
        finally:
            if held is None:
                await asyncio.gather(*(node.close() for node in asked.values()))

    def listen_for_interrupt(self) -> None:
        """First Ctrl-C: stop after the running steps. Second: at once."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def interrupt() -> None:
            if self.interrupted and task is not None:
                task.cancel()
            self.interrupted = True
            self.emit(Said("warning", "stopping after the running steps; Ctrl-C again stops at once"))

        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, interrupt)


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes to standard output, and the exit code."""

    data: dict[str, Any]
    exit_code: Exit


async def converging(session: Session, verb: str) -> Answer:
    """Any converging verb. A start that fails is cleaned up: its ranks are ended, the evidence is in the answer."""
    begin = time.monotonic()
    session.listen_for_interrupt()
    goal, payloads = session.goal()
    session.emit(RunStarted(verb, session.profile.name, tuple(node.name for node in session.cluster.nodes)))
    async with session.world(payloads) as world:
        if verb == "stop":
            await let_rest(world, session.profile.name, "stopped")
        outcome = await _run(session, world, goal, verb)
        failures = outcome.failures
        slow, items = False, tuple[Item, ...]()
        if verb in STARTING and not failures and not outcome.interrupted:
            _say_weights(session, goal, outcome.facts)
            items = await prove(world, goal, outcome.facts, session.ignore)
            failures = unproven_items(items)
            # what served before this verb goes on serving, slowly; only what it started itself is ended
            slow = bool(failures) and _started(outcome)
            if not failures:
                await boots.record(world, goal, outcome.facts)
        if failures and outcome.leased and verb in STARTING and (slow or _unproven(goal, outcome)):
            await _keep_evidence(session, world, failures)
            session.emit(Said("warning", "the start failed: ending the ranks that were started"))
            session.emit(
                Said("note", "sparkyard serve --last-good brings back what last served as it should")
            )
            failures += (await converge(world, up.abandon(goal))).failures
    exit_code = Exit.INTERRUPTED if outcome.interrupted else _exit_of(failures)
    seconds = time.monotonic() - begin
    session.emit(RunEnded(verb, exit_code, seconds, failures))
    data = run_json(verb, outcome.stages, failures, seconds)
    return Answer(data | ({"proven": proof_json(items)} if items else {}), exit_code)


def _say_weights(session: Session, goal: Goal, facts: ClusterFacts) -> None:
    """Which way every rank's weights took: its own slices, or the full checkpoint and why."""
    newest = serve_plan.newest(goal, facts)
    for rank, node in enumerate(goal.ranked):
        here = facts.get(node.name)
        found = here.rank(goal.profile.name, rank, newest) if here else None
        if found is None or not found.weights_from:
            continue
        missed = found.weights_from != "slices" and goal.slices(rank, "") is not None
        text = (
            f"{node.name}: rank {rank} loaded its weights from the {found.weights_from}: {found.weights_note}"
        )
        session.emit(Said("warning" if missed else "note", text))


async def _run(session: Session, world: World, goal: Goal, verb: str) -> Outcome:
    """The verb. Before ranks are started, and before older ones are ended for them, the preflight must pass."""
    if verb not in STARTING:
        wait_s = STOP_LEASE_WAIT_S if verb == "stop" else 0.0
        return await converge(world, up.verb(verb, goal), lease_wait_s=wait_s)
    budget = await session.measured_budget(verb, world)
    prepared = Outcome()
    if verb == "up":
        prepared = await converge(world, up.judged(goal, budget, up.prepare(goal), disks=True))
        if prepared.failures or prepared.interrupted:
            return replace(prepared, leased=False)
        budget = None  # judged at the first look
    facts = await observe(world)
    stages, _ = dry_run(up.verb(verb, goal, budget), facts)
    if _touches(stages) and (refused := await preflight(world, goal, facts, session.ignore)):
        return Outcome(refused, prepared.stages, facts, leased=False)
    outcome = await converge(world, up.verb(verb, goal, budget))
    return replace(outcome, stages=prepared.stages + outcome.stages)


def _touches(stages: tuple[Stage, ...]) -> bool:
    """Whether anything of a gang would be changed: also what only stops, before a start that is not seen yet."""
    return any(
        isinstance(step.action, SetDesired | StopRank | StartRank) for stage in stages for step in stage.steps
    )


def _starts(stages: tuple[Stage, ...]) -> bool:
    return any(isinstance(step.action, StartRank) for stage in stages for step in stage.steps)


def _started(outcome: Outcome) -> bool:
    return _starts(outcome.stages)


async def _keep_evidence(session: Session, world: World, failures: tuple[Failure, ...]) -> None:
    """Before anything is ended. A disk that is full must not keep the ranks from being ended."""
    if session.evidence is None:
        return
    why = "; ".join(f"{failure.node}: {failure.message}" for failure in failures[:4])
    try:
        place = await evidence.save(world.nodes, session.profile.name, session.evidence, why)
        session.emit(Said("note", f"evidence of every rank: {place}; sparkyard explain reads it"))
    except OSError as error:
        session.emit(Said("warning", f"{session.evidence}: {error}: no evidence is kept"))


async def let_rest(world: World, deployment: str, state: str) -> tuple[Failure, ...]:
    """Write down that it shall not serve, on every node that answers. Whoever starts it now sees that and gives up."""
    replies = await each(
        world.nodes,
        lambda name: reply(
            world.nodes[name],
            Ask("rest", {"deployment": deployment, "state": state}),
            timeout_s=REST_TIMEOUT_S,
        ),
    )
    return tuple(answer.failure for answer in replies.values() if answer.failure is not None)


def _exit_of(failures: tuple[Failure, ...]) -> Exit:
    return Exit.FAILED if failures else Exit.FINE


def _unproven(goal: Goal, outcome: Outcome) -> bool:
    """True when ranks of the deployment run that have never been proven, or whose gang has lost one.

    Also when none runs any more although this run began a start: a gang ends by itself when one of its ranks does.
    """
    name = goal.profile.name
    ranks = [found for here in outcome.facts.values() for found in here.ranks if found.deployment == name]
    alive = [found for found in ranks if found.alive]
    if not alive:
        return _touches(outcome.stages)
    newest = max(found.generation for found in alive)
    head = outcome.facts.get(goal.head.name)
    boot = head.boot(name, newest) if head else None
    proven = boot is not None and boot.canary and boot.smoke
    return not proven or any(found.generation == newest and not found.alive for found in ranks)


async def planned(session: Session, verb: str) -> Answer:
    """The stages that the verb would run now. Touches nothing. Undetermined when no node answers."""
    goal, _ = session.goal()
    async with session.world() as world:
        facts = await observe(world)
        budget = await session.measured_budget(verb, world)
    stages, failures = dry_run(up.verb(verb, goal, budget), facts)
    return Answer(plan_json(verb, stages, failures), _exit_of(failures))


async def judged(session: Session, verb: str, checkpoint: Path | None) -> Answer:
    """As `planned`, with the memory and disk ledgers. Those need no node, so without one there are no stages."""
    goal, _ = session.goal()
    async with session.world() as world:
        facts, missing = await look(world.nodes, world.look_args())
        earlier = await boots.read(world, session.profile.name) if facts else ()
    measured = corrections(earlier, session.profile.identity)
    found = ledgers(session.profile, session.cluster, checkpoint, facts or None, measured)
    data: dict[str, Any] = {
        "schema": "sparkyard/plan/v1",
        "verb": verb,
        "stages": None,
        "blocked": failures_json(missing),
    }
    failures: tuple[Failure, ...] = ()
    if facts:
        stages, failures = dry_run(up.verb(verb, goal), facts)
        data = plan_json(verb, stages, failures)
    fits = found.memory is None or found.memory.verdict != "does not fit"
    return Answer({**data, **found.json, "lines": found.text}, _exit_of(failures) if fits else Exit.FAILED)


async def status(session: Session) -> Answer:
    """Desired against observed; fine when it serves."""
    goal, _ = session.goal()
    async with session.world() as world:
        facts, missing = await look(world.nodes, world.look_args())
    data = status_json(goal, facts, missing)
    if not facts:
        return Answer(data, Exit.UNDETERMINED)
    return Answer(data, Exit.FINE if data["serving"] else Exit.FAILED)


async def smoke(session: Session) -> Answer:
    """The smoke of the OpenAI API, item by item; changes nothing."""
    goal, _ = session.goal()
    head = goal.head.name
    args = {
        "port": goal.port(goal.head, session.profile.ports.api),
        "model": session.profile.model.served_name,
        "timeout_s": session.profile.deadlines.canary_s,
        "key_file": session.profile.ports.api_key_file,
    }
    async with session.world() as world:
        answer = await reply(world.nodes[head], Ask("smoke", args), timeout_s=SMOKE_TIMEOUT_S)
    items = answer.value.get("items", [])
    failure = answer.failure
    ok = failure is None and bool(items) and all(item["ok"] for item in items)
    data = {
        "schema": "sparkyard/smoke/v1",
        "ok": ok,
        "items": items,
        "failure": failure.message if failure else None,
    }
    if failure is not None and failure.kind in {"unreachable", "timeout"}:
        return Answer(data, Exit.UNDETERMINED)
    return Answer(data, Exit.FINE if ok else Exit.FAILED)


def events_path(cluster_file: Path) -> Path:
    """`events.jsonl` lies beside the cluster file."""
    return cluster_file.parent / ".sparkyard" / "events.jsonl"


def say_line(text: str) -> None:
    """One line of data on standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
