"""A seeded simulation of nodes: the production loop runs over `predict`, with faults and its own time.

What an action does to a node is what `predict` says; the simulator adds what happens by itself (jobs finish, ranks
move through their phases, a gang dies with one of its ranks) and what goes wrong. Invariants that must hold whatever
happens are checked at every action; a broken one raises `Violation`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model import step as steps
from orchestrator.model.cluster import Cluster
from orchestrator.model.event import Event, to_json
from orchestrator.model.facts import CheckpointFacts, Host, MemoryFacts, NodeFacts
from orchestrator.model.goal import Goal, Package
from orchestrator.model.profile import Profile
from orchestrator.model.step import Failure, OpenGate, PackDone, StartRank
from orchestrator.plan.predict import _prove_rank, after_action, after_wait
from orchestrator.remote.node import Ask, Message, Progressed, Reply
from orchestrator.run import World

TIME_MAX_S = 40_000.0
"""Virtual seconds that a run may take: the sum of all deadlines is below; more is a wait without an end."""
GIB = 1 << 30
INDEX = "1" * 64
PACKAGE = Package("a" * 64, 1000)
ACTIONS = {kind.__name__: kind for kind in steps.Action.__args__}


class Violation(AssertionError):
    """An invariant is broken."""


@dataclass
class Faults:
    """Probabilities, each for one request or one second."""

    before: float = 0.0
    after: float = 0.0
    job_dies: float = 0.0
    rank_dies: float = 0.0
    node_gone: float = 0.0
    slow: float = 0.0


@dataclass
class SimWorld:
    """The truth about all nodes, and time."""

    goal: Goal
    seed: int
    faults: Faults = field(default_factory=Faults)
    facts: dict[str, NodeFacts] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    injected: list[tuple[str, str]] = field(default_factory=list)
    time_s: float = 0.0
    reported_until: int = 0
    """How many of `injected` had happened when the last run gave its failures."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - a simulation, not a secret
        self.gone_until: dict[str, float] = {}
        self.ready_at: dict[tuple[str, str], float] = {}
        for node in self.goal.cluster.nodes:
            self.facts[node.name] = fresh(node.name, self.goal)

    # time ---------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """See `Clock`."""
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        """See `Clock`: virtual time passes, and what happens by itself happens."""
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        """Advance; Violation when a run has no end."""
        self.time_s += seconds
        if self.time_s > TIME_MAX_S:
            raise Violation(f"still running after {TIME_MAX_S:.0f} s of virtual time")
        for name in self.facts:
            self._jobs(name)
            self._ranks(name)

    def chance(self, probability: float) -> bool:
        """One roll."""
        return probability > 0 and self.random.random() < probability

    # what happens by itself --------------------------------------------------------------------------------

    def _jobs(self, name: str) -> None:
        here = self.facts[name]
        for job in here.jobs:
            if job.state != "running":
                continue
            if self.chance(self.faults.job_dies):
                self.injected.append((name, "job died"))
                dead = job.model_copy(update={"state": "failed", "error": "killed"})
                jobs = tuple(dead if found.id == job.id else found for found in here.jobs)
                self.facts[name] = here = here.model_copy(update={"jobs": jobs})
            elif self.time_s >= self.ready_at.setdefault(
                (name, job.id), self.time_s + self.random.uniform(1, 90)
            ):
                store = next(s for s in self._stores(name) if s.startswith(job.id.removeprefix("pack-")))
                what = "tables" if store == self._stores(name)[0] else "slices"
                self.facts[name] = here = after_wait(here, PackDone(store, what))

    def _stores(self, name: str) -> list[str]:
        rank = [node.name for node in self.goal.ranked].index(name)
        slices = self.goal.slices(rank, INDEX)
        return [self.goal.store(rank, INDEX), *([slices] if slices else [])]

    def _ranks(self, name: str) -> None:
        here = self.facts[name]
        for found in here.ranks:
            if not found.alive:
                continue
            gang = self.gang(found.deployment, found.generation)
            if self.chance(self.faults.rank_dies):
                self.injected.append((name, f"rank {found.rank} died"))
                self._change(name, found, self._end("engine_signal: 9"))
                continue
            started = [other for _, other in gang]
            if any(not other.alive and other.ended != "stopped" for other in started) and self.chance(0.2):
                self._change(name, found, self._end("engine_exit: peer is gone"))
                continue
            complete = len(started) == self.goal.profile.parallel.tp and all(other.alive for other in started)
            if complete and found.phase == "starting" and self.chance(0.1):
                self._change(name, found, {"phase": "joined"})
            opened = any(other.gate_open for other in started)
            if complete and opened and found.phase == "joined" and self.chance(0.2):
                self.facts[name] = _prove_rank(
                    self.facts[name], found.deployment, found.generation, found.rank
                )
                self._change(name, found, {"phase": "ready"})

    def _end(self, why: str) -> dict[str, Any]:
        return {"alive": False, "phase": "ended", "ended": why, "last_log_unix_s": self.time_s}

    def gang(self, deployment: str, generation: int) -> list[tuple[str, Any]]:
        """All ranks of one generation, by node."""
        return [
            (name, found)
            for name, here in self.facts.items()
            for found in here.ranks
            if (found.deployment, found.generation) == (deployment, generation)
        ]

    def _change(self, name: str, rank: Any, changes: dict[str, Any]) -> None:
        ranks = tuple(
            found.model_copy(update=changes)
            if (found.generation, found.rank) == (rank.generation, rank.rank)
            else found
            for found in self.facts[name].ranks
        )
        self.facts[name] = self.facts[name].model_copy(update={"ranks": ranks})

    # invariants ---------------------------------------------------------------------------------------------

    def check(self, name: str, action: steps.Action) -> None:
        """What must hold before an action, whoever asks for it."""
        match action:
            case StartRank(deployment=deployment, generation=generation, rank=rank):
                others = {
                    found.generation
                    for here in self.facts.values()
                    for found in here.ranks
                    if found.alive and found.deployment == deployment
                }
                if others - {generation}:
                    raise Violation(f"{name}: rank {rank} of generation {generation} starts beside {others}")
                # Started, not alive: a rank may die between a look and the action, and no controller can know.
                started = {found.rank for _, found in self.gang(deployment, generation)}
                if rank == 0 and started != set(range(1, self.goal.profile.parallel.tp)):
                    raise Violation(f"the head starts while only the workers {sorted(started)} were started")
                desired = self.facts[name].desired
                if desired is None or (desired.state, desired.generation) != ("serving", generation):
                    raise Violation(f"{name}: rank {rank} starts without a desired record")
            case OpenGate(deployment=deployment, generation=generation):
                if len(self.gang(deployment, generation)) != self.goal.profile.parallel.tp:
                    raise Violation("the gate is opened without the whole gang")
            case _:
                return


@dataclass
class SimNode:
    """One node behind the seam."""

    name: str
    world: SimWorld
    leases: dict[str, str]
    holder: str = ""

    async def ask(self, request: Ask, *, timeout_s: float) -> AsyncIterator[Message]:  # noqa: ARG002
        """See `Node.ask`."""
        world = self.world
        world.pass_time(world.random.uniform(0.01, 0.2))
        if world.chance(world.faults.node_gone):
            world.gone_until[self.name] = world.time_s + world.random.uniform(1, 60)
        if world.gone_until.get(self.name, 0.0) > world.time_s:
            world.injected.append((self.name, "gone"))
            self.leases.pop(self.name, None)
            yield Reply({}, Failure(self.name, "unreachable", "the network is gone"))
            return
        match request.what:
            case "facts":
                yield Reply(world.facts[self.name].model_dump(mode="json"))
            case "lease":
                holder = str(request.args["holder"])
                if self.leases.get(self.name, holder) != holder:
                    yield Reply(
                        {}, Failure(self.name, "refused", f"the lease is held by {self.leases[self.name]}")
                    )
                    return
                self.leases[self.name] = holder
                yield Reply({"fence": 1})
            case "release":
                self.leases.pop(self.name, None)
                yield Reply({})
            case "boots":
                yield Reply({"records": []})
            case "boot_done":
                boots = tuple(
                    boot.model_copy(update={"proven": True, "profile": request.args["profile"]})
                    if boot.generation == request.args["generation"]
                    else boot
                    for boot in world.facts[self.name].boots
                )
                world.facts[self.name] = world.facts[self.name].model_copy(update={"boots": boots})
                yield Reply({})
            case "holders":
                yield Reply({"available_bytes": world.facts[self.name].memory.available_bytes, "holders": []})
            case "offer":
                yield Progressed({"url": f"http://{request.args['address']}:1/", "token": "sim"})
                yield Reply({})
            case _:
                yield self._act(request)

    def _act(self, request: Ask) -> Reply:
        world = self.world
        kind = ACTIONS[request.what]
        extra = {"data", "url", "token"}
        action = kind(**{key: value for key, value in request.args.items() if key not in extra})
        world.check(self.name, action)
        world.pass_time(world.random.uniform(0.1, 5) * (20 if world.chance(world.faults.slow) else 1))
        if world.chance(world.faults.before):
            world.injected.append((self.name, f"{request.what} refused"))
            return Reply({}, Failure(self.name, "failed", f"{request.what}: injected before it began"))
        world.facts[self.name] = after_action(world.facts[self.name], action, world.facts)
        if request.what == "StartPack":
            world.ready_at.pop((self.name, f"pack-{action.store[:16]}"), None)
        if request.what == "ProveCheckpoint":
            proof = world.facts[self.name].proof.model_copy(update={"blocks_sha256": "2" * 64})
            world.facts[self.name] = world.facts[self.name].model_copy(update={"proof": proof})
        if world.chance(world.faults.after):
            world.injected.append((self.name, f"{request.what} reply lost"))
            return Reply({}, Failure(self.name, "unreachable", f"{request.what}: the answer was lost"))
        return Reply({})

    async def close(self) -> None:
        """See `Node.close`."""


def fresh(name: str, goal: Goal) -> NodeFacts:
    """A node on which nothing was ever done."""
    own = CheckpointFacts(path="/checkpoint", index_sha256=INDEX, shards=4, total_bytes=4 * GIB)
    return NodeFacts(
        node=name,
        boot_id="b",
        machine_id="m",
        agent="0" * 64,
        now_unix_s=0.0,
        host=Host(hostname=name, kernel="6", machine="aarch64", python="3.12", cpus=20, user="u"),
        memory=MemoryFacts(total_bytes=121 * GIB, available_bytes=110 * GIB),
        checkpoint=own if name == goal.owner.name else None,
    )


def make_goal(profile: Profile, cluster: Cluster) -> Goal:
    """A goal with a package that exists nowhere."""
    return Goal(profile, cluster, PACKAGE)


def open_world(sim: SimWorld, holder: str, emit: Callable[[Event], None] | None = None, **more: Any) -> World:
    """The production loop's world over simulated nodes."""

    def record(event: Event) -> None:
        sim.events.append(to_json(event, round(sim.time_s, 3)))
        if emit is not None:
            emit(event)

    leases: dict[str, str] = more.pop("leases", {})
    return World(
        nodes={name: SimNode(name, sim, leases) for name in sim.facts},
        cluster=sim.goal.cluster,
        emit=record,
        clock=sim,
        holder=holder,
        payloads={PACKAGE.digest: b"package"},
        poll_s=4.0,
        **more,
    )
