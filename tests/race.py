"""Command-line verbs against the monitor, both in production code over simulated nodes, in virtual time.

Time passes only while everybody sleeps, so a run is as fast as it computes and the same for a seed, whatever the order
in which the two are served.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from orchestrator.each import look
from orchestrator.errors import SparkyardError
from orchestrator.model.facts import Desired, LeaseFacts
from orchestrator.model.pulse import BootPulse, Pulse, RankPulse
from orchestrator.model.sample import Happened
from orchestrator.model.step import Failure
from orchestrator.plan import up
from orchestrator.remote.node import Ask, Message, Reply
from orchestrator.run import World, converge
from orchestrator.verbs import let_rest
from orchestrator.watch.guardian import Guardian
from orchestrator.watch.policy import Policy
from tests.clusters import lab_cluster, lab_profile
from tests.sim import SimNode, SimWorld, Violation, make_goal, open_world

HOUR_S = 3600.0
LOOK_EVERY_S = 20.0
POLICY = Policy(settle_s=4, orphan_s=40, back_off_s=20, canary_pace_s=300)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Instead of waiting for the next timer, its clock jumps there."""

    def __init__(self) -> None:
        loop = self

        class Jump(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> list[Any]:
                if timeout:
                    loop.jumped_s += timeout
                return super().select(0)

        self.jumped_s = 0.0
        super().__init__(Jump())

    def time(self) -> float:
        return self.jumped_s


@dataclass
class RaceWorld(SimWorld):
    """The simulated truth, with the event loop's virtual clock."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def pass_time(self, seconds: float) -> None:
        """Time passes by itself here."""

    async def live(self) -> None:
        """What happens by itself, every other second."""
        while True:
            await asyncio.sleep(2)
            self.time_s = self.now()
            for name in self.facts:
                self._jobs(name)
                self._ranks(name)


@dataclass
class Fences:
    """Who holds the lease of each node: a connection, as with real agents."""

    held: dict[str, object] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


class RaceNode(SimNode):
    """A node that answers after a while, keeps the lease, and checks the desired record as the agent does."""

    def __init__(self, name: str, world: RaceWorld, fences: Fences) -> None:
        super().__init__(name, world, {})
        self.fences, self.me = fences, object()

    async def ask(self, request: Ask, *, timeout_s: float) -> AsyncIterator[Message]:
        await asyncio.sleep(self.world.random.uniform(0.01, 0.5))
        here = self.world.facts[self.name]
        match request.what:
            case "lease":
                if self.fences.held.get(self.name, self.me) is not self.me:
                    yield self.refuse("the lease is held by somebody")
                    return
                self.fences.held[self.name] = self.me
                self.fences.names[self.name] = str(request.args["holder"])
                yield Reply({"fence": 1})
            case "release":
                if self.fences.held.get(self.name) is self.me:
                    del self.fences.held[self.name]
                yield Reply({})
            case "rest":
                desired = here.desired
                if desired is not None and desired.deployment == request.args["deployment"]:
                    self.desire(desired.model_copy(update={"state": request.args["state"]}))
                yield Reply({})
            case "pulse":
                yield Reply(self.pulse())
            case "canary":
                working = all(rank.alive for _, rank in self.newest())
                yield (
                    Reply({"text": "w", "right": True, "seconds": 0.1})
                    if working
                    else self.refuse("no answer")
                )
            case "facts" | "offer" | "holders" | "boots" | "boot_done":
                async for message in super().ask(request, timeout_s=timeout_s):
                    yield message
            case _:
                yield await self.act(request)

    async def act(self, request: Ask) -> Reply:
        if self.fences.held.get(self.name) is not self.me:
            raise Violation(f"{self.name}: {request.what} without the lease")
        desired = self.world.facts[self.name].desired
        if request.what == "SetDesired" and request.args["only_if_serving"] and desired.state != "serving":
            return self.refuse(f"the desired record says {desired.state}")
        if request.what == "StartRank" and (
            desired is None or (desired.state, desired.generation) != ("serving", request.args["generation"])
        ):
            return self.refuse("the desired record does not say so")
        answer = self._act(request)
        await asyncio.sleep(self.world.random.uniform(0.1, 3))
        return answer

    def refuse(self, why: str) -> Reply:
        return Reply({}, Failure(self.name, "refused", why))

    def desire(self, desired: Desired) -> None:
        self.world.facts[self.name] = self.world.facts[self.name].model_copy(update={"desired": desired})

    def newest(self) -> list[tuple[str, Any]]:
        generation = max(
            (rank.generation for here in self.world.facts.values() for rank in here.ranks), default=0
        )
        return self.world.gang("lab", generation)

    def pulse(self) -> dict[str, Any]:
        here = self.world.facts[self.name]
        holder = self.fences.names.get(self.name) if self.name in self.fences.held else None
        return Pulse(
            now_unix_s=0.0,
            monotonic_s=self.world.now(),
            boot_id="b",
            available_bytes=here.memory.available_bytes,
            desired=here.desired,
            lease=LeaseFacts(holder=holder, fence=1) if holder else None,
            boots=tuple(
                BootPulse(generation=boot.generation, proven=boot.canary and boot.smoke)
                for boot in here.boots
            ),
            ranks=tuple(
                RankPulse(
                    generation=rank.generation,
                    rank=rank.rank,
                    guarded=rank.alive,
                    processes=3 if rank.alive else 0,
                    stopped=0,
                    processor_s=0.0,
                    phase=rank.phase,
                    ended=rank.ended,
                )
                for rank in here.ranks
            ),
        ).model_dump(mode="json")


class Race:
    """One seed: a gang that serves, a monitor, and a person with a few verbs, while ranks die."""

    def __init__(self, seed: int) -> None:
        self.sim = RaceWorld(make_goal(lab_profile(), lab_cluster()), seed)
        self.fences = Fences()
        self.said: list[Happened] = []
        self.verbs: list[tuple[str, int]] = []
        self.ending = False

    def world(self, holder: str) -> World:
        world = open_world(self.sim, holder)
        world.nodes = {name: RaceNode(name, self.sim, self.fences) for name in self.sim.facts}
        world.stopping = lambda: self.ending
        return world

    async def verb(self, name: str) -> int:
        """As `verbs.converging` does it; the number of failures."""
        goal, world = self.sim.goal, self.world(f"person {len(self.verbs)}")
        if name == "stop":
            await let_rest(world, "lab", "stopped")
        outcome = await converge(world, up.verb(name, goal), lease_wait_s=120 if name == "stop" else 0)
        if outcome.failures and outcome.leased and name != "stop":
            await converge(world, up.abandon(goal))
        self.verbs.append((name, len(outcome.failures)))
        return len(outcome.failures)

    async def run(self) -> None:
        living = asyncio.create_task(self.sim.live())
        if await self.verb("up"):
            raise Violation("the first boot failed")

        async def save(_: str) -> str:
            return "nowhere"

        guardian = Guardian(self.world("watch"), self.sim.goal, self.said.append, save, POLICY)
        watching = asyncio.create_task(guardian.run(LOOK_EVERY_S))
        random = self.sim.random
        try:
            for _ in range(random.randint(1, 3)):
                await asyncio.sleep(random.uniform(0, 90))
                if random.random() < 0.6:
                    self.kill()
                await asyncio.sleep(random.uniform(0, 60))
                await self.verb(random.choice(("stop", "stop", "restart", "serve", "up")))
            last = random.choice(("stop", "up"))
            if last == "stop":
                await self.stop_stays()
            else:
                await self.comes_back()
        finally:
            self.ending = True
            living.cancel()
            await asyncio.wait({watching, living})
        if watching.exception() is not None:
            raise watching.exception()  # type: ignore[misc]

    def kill(self) -> None:
        """One rank dies by itself."""
        alive = [(name, rank) for name, here in self.sim.facts.items() for rank in here.ranks if rank.alive]
        if alive:
            name, rank = self.sim.random.choice(alive)
            self.sim._change(name, rank, self.sim._end("engine_signal: 9"))

    async def stop_stays(self) -> None:
        """After `stop` nothing runs, and nothing comes back."""
        if failures := await self.verb("stop"):
            raise Violation(f"stop has {failures} failures")
        for _ in range(4):
            await asyncio.sleep(60)
            facts, _ = await look(self.world("looker").nodes, {})
            if any(rank.alive for here in facts.values() for rank in here.ranks):
                raise Violation("stopped, and yet a rank runs")
        if any(here.desired and here.desired.state != "stopped" for here in self.sim.facts.values()):
            raise Violation("the desired record says serving again")

    async def comes_back(self) -> None:
        """After a start that worked, a rank that dies is replaced by one gang."""
        for _ in range(4):
            if not await self.verb("up"):
                break
            await asyncio.sleep(200)
        else:
            raise Violation("up never works")
        self.kill()
        await asyncio.sleep(HOUR_S / 6)
        newest = max(rank.generation for here in self.sim.facts.values() for rank in here.ranks)
        alive = [rank.generation for here in self.sim.facts.values() for rank in here.ranks if rank.alive]
        if alive != [newest] * 3:
            raise Violation(f"alive {alive}, newest generation {newest}")


def race(seed: int) -> Race:
    found = Race(seed)
    loop = VirtualLoop()
    try:
        loop.run_until_complete(found.run())
    finally:
        loop.close()
    return found


def hold(seeds: range) -> None:
    """Every seed, or AssertionError with the first that breaks a rule."""
    for seed in seeds:
        try:
            race(seed)
        except (Violation, SparkyardError) as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
