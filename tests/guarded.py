"""The production guardian over a lab: what tests do to its ranks, and what it says and does about that."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import psutil

from orchestrator.lab.place import Place
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts, RankFacts
from orchestrator.model.sample import CanaryAnswered, GangRestarted, Happened
from orchestrator.verbs import Session, smoke, status
from orchestrator.watch import evidence
from orchestrator.watch.guardian import Guardian
from orchestrator.watch.policy import Policy
from orchestrator.watch.verdict import State


class Lab(Protocol):
    """A lab whose gang is watched."""

    place: Place

    def session(self) -> Session:
        """As the command line makes one."""
        ...

    def facts(self) -> ClusterFacts:
        """One look."""
        ...

    def processes(self) -> list[int]:
        """Everything that runs below its folder."""
        ...


class Watched:
    """The guardian over a lab, for as long as `until` takes."""

    def __init__(
        self, lab: Lab, folder: Path, policy: Policy, *, every_s: float = 0.5, bound_s: float = 90.0
    ) -> None:
        self.lab, self.folder, self.policy = lab, folder, policy
        self.every_s, self.bound_s = every_s, bound_s
        self.events: list[Happened] = []
        self.at_s: list[float] = []
        """When each of them came."""
        self.guardian: Guardian | None = None
        self.happened_s = 0.0
        """When the test did what it does."""

    def run(self, until: Callable[[], bool], then: Callable[[], object] | None = None) -> None:
        """Watch; do `then` once the gang was found well; go on until `until`. AssertionError after the bound."""

        async def go() -> None:
            session = self.lab.session()
            session.strict_conformance = False
            goal, payloads = session.goal()
            async with session.world(payloads) as world:
                world.emit = self._take

                async def save(why: str) -> str:
                    return str(await evidence.save(world.nodes, goal.profile.name, self.folder, why))

                guardian = self.guardian = Guardian(world, goal, self._take, save, self.policy)
                watching = asyncio.create_task(guardian.run(self.every_s))
                try:
                    async with asyncio.timeout(self.bound_s):
                        if then is not None:
                            while guardian.verdict is None or guardian.verdict.state.name not in {
                                "IDLE",
                                "BUSY",
                            }:
                                await asyncio.sleep(0.1)
                            self.mark()
                            happening = then()
                            if isinstance(happening, Awaitable):
                                await happening
                        while not until():
                            await asyncio.sleep(0.1)
                except TimeoutError:
                    raise AssertionError(f"not within {self.bound_s} s; said: {self.said()[-8:]}") from None
                finally:
                    session.interrupted = True
                    await watching

        asyncio.run(go())

    def _take(self, happened: Happened) -> None:
        self.events.append(happened)
        self.at_s.append(self.now_s())

    def now_s(self) -> float:
        """The clock of `at_s`."""
        return time.monotonic()

    def mark(self) -> None:
        """The fault happens now."""
        self.happened_s = self.now_s()

    def first_said(self, beginning: str) -> float:
        """When something that begins so was first said after the fault."""
        for at_s, event in zip(self.at_s, self.events, strict=True):
            if at_s >= self.happened_s and isinstance(event, Said) and event.text.startswith(beginning):
                return at_s
        raise AssertionError(f"never said: {beginning}; said: {self.said()}")

    def said(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Said)]

    def restarts(self) -> list[GangRestarted]:
        return [event for event in self.events if isinstance(event, GangRestarted)]

    def canaries(self) -> list[CanaryAnswered]:
        return [event for event in self.events if isinstance(event, CanaryAnswered)]

    def verdict(self) -> State | None:
        """What it finds the gang to be now."""
        found = self.guardian.verdict if self.guardian else None
        return found.state if found else None

    def serves_again(self) -> bool:
        return "it serves again" in self.said()


def rank(lab: Lab, number: int) -> RankFacts:
    found = [r for here in lab.facts().values() for r in here.ranks if r.rank == number and r.alive]
    return max(found, key=lambda entry: entry.generation)


def guard(lab: Lab, number: int) -> psutil.Process:
    """The guard of a living rank."""
    folder = lab.place.node(f"spark-{number + 1}") / "ranks"
    wanted = f"lab.g{rank(lab, number).generation}.r{number}"
    for pid in lab.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended, a zombie too
            words = psutil.Process(pid).cmdline()
            if "sparkyard_engine.guard" in words and str(folder / wanted) in words[-1]:
                return psutil.Process(pid)
    raise AssertionError(f"no guard of rank {number}")


def engine(lab: Lab, number: int) -> psutil.Process:
    return guard(lab, number).children()[0]


def serves(lab: Lab) -> bool:
    answer = asyncio.run(status(lab.session()))
    return answer.exit_code == 0 and asyncio.run(smoke(lab.session())).exit_code == 0
