"""The shipped lab in a folder of its own, with real SGLang, and what the gang's tests do to it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from orchestrator.explain.verb import from_folder
from orchestrator.lab.place import NODES, Place
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Event
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.sample import GangRestarted
from orchestrator.run import observe
from orchestrator.verbs import Answer, Session, converging, status
from orchestrator.watch.bounds import Bounds, bounds
from orchestrator.watch.guardian import PULSE_TIMEOUT_S
from orchestrator.watch.policy import Policy
from tests.guarded import Watched, engine

POLICY = Policy(
    canary_pace_s=10,
    canary_s=20,
    recheck_s=2,
    settle_s=8,
    stopped_s=6,
    hang_s=20,
    orphan_s=10,
    back_off_s=2,
    silent_s=6,
)
"""As shipped, only quicker; gloo's ranks follow a dead peer within 7 s."""
LOOK_EVERY_S = 2.0
BOUNDS: Bounds = bounds(POLICY, LOOK_EVERY_S + PULSE_TIMEOUT_S)
COMES_BACK_S = 900.0
"""Noticing it, ending the gang, a boot, canary and smoke: 70 s on two cores; a bound against a hang."""
ANSWER_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class KilledBoot:
    """A boot whose controller was killed wherever there is something to kill it in."""

    killed: tuple[str, ...]
    guards: frozenset[int]
    """Those that were seen, early in the boot and late."""
    generation: int


class RealLab:
    """Three nodes, three ranks."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder)
        self.profile = load_profile("lab")
        self.events: list[Event] = []
        self.first: dict[str, Any] = {}
        """What the first `up` answered."""
        self.first_boot = KilledBoot((), frozenset(), 0)

    def session(self) -> Session:
        return Session(self.profile, load_cluster(self.place.cluster_file), self.events.append)

    def do(self, verb: str) -> Answer:
        return asyncio.run(converging(self.session(), verb))

    def command(self, *words: str) -> list[str]:
        """The command line of the product on this lab."""
        options = ["--profile", "lab", "--cluster", str(self.place.cluster_file)]
        return [sys.executable, "-m", "orchestrator", *words, *options]

    def facts(self) -> ClusterFacts:
        async def go() -> ClusterFacts:
            async with self.session().world() as world:
                return await observe(world)

        return asyncio.run(go())

    def generation(self) -> int:
        """The newest that a node was told of; 0 before the first."""
        records = [here.desired for here in self.facts().values()]
        return max((record.generation for record in records if record), default=0)

    def processes(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.place.folder) in " ".join(process.cmdline()):
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def rank_folder(self, generation: int, rank: int) -> Path:
        return self.place.node(NODES[rank]) / "ranks" / f"lab.g{generation}.r{rank}"

    def url(self) -> str:
        head = load_cluster(self.place.cluster_file).node(NODES[0])
        return f"http://127.0.0.1:{self.profile.ports.api + head.port_offset}"

    def generate(self, words: int, tokens: int) -> httpx.Response:
        """A greedy completion of a prompt that no cache knows."""
        prompt = f"{secrets.token_hex(4)} " + "one two three " * (words // 3)
        body = {"model": "lab-v41", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        return httpx.post(f"{self.url()}/v1/completions", json=body, timeout=ANSWER_TIMEOUT_S)


def watched(lab: RealLab, folder: Path) -> Watched:
    return Watched(lab, folder, POLICY, every_s=LOOK_EVERY_S, bound_s=COMES_BACK_S)


def kept(folder: Path) -> Path:
    """The one folder of evidence."""
    (found,) = [path for path in folder.iterdir() if path.is_dir()]
    return found


def headline(folder: Path) -> dict[str, Any]:
    """What `explain` names first."""
    causes = from_folder(folder).data["causes"]
    assert causes, "explain finds nothing"
    first: dict[str, Any] = causes[0]
    assert first["lines"]
    return first


def restarted_once(
    watch: Watched,
    happens: Callable[[], object],
    *,
    verdict: str,
    within_s: float,
    cause: str,
    ranks: list[int],
) -> GangRestarted:
    """Named within the bound, with evidence that `explain` understands; restarted exactly once; it serves again."""
    lab = watch.lab
    assert isinstance(lab, RealLab)
    before = lab.generation()
    watch.run(watch.serves_again, then=happens)
    restarts = watch.restarts()
    assert len(restarts) == 1, "\n".join(watch.said())
    assert restarts[0].why.startswith(verdict), restarts[0].why
    named_s = watch.first_said(f"gang: {restarts[0].why.split(':')[0]}") - watch.happened_s
    print(
        f"{restarts[0].why}: named after {named_s:.1f} s, serving after {watch.now_s() - watch.happened_s:.0f} s"
    )
    assert named_s <= within_s
    folder = kept(watch.folder)
    assert all((folder / f"rank-{rank}" / "engine.log").exists() for rank in range(len(NODES)))
    found = headline(folder)
    assert found["cause"] == cause, found
    assert found["ranks"], found
    assert set(found["ranks"]) <= set(ranks), found
    assert lab.generation() == before + 1
    assert lab.generate(30, 8).status_code == httpx.codes.OK
    assert asyncio.run(status(lab.session())).exit_code == 0
    return restarts[0]


def scheduler(lab: RealLab, number: int) -> psutil.Process:
    """The process of a rank that computes: the one below its launcher that is called a scheduler."""
    for child in engine(lab, number).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended, a zombie too
            if "scheduler" in " ".join(child.cmdline()):
                return child
    raise AssertionError(f"rank {number} has no scheduler")


def until(holds: Callable[[], object], bound_s: float, what: str) -> float:
    """Wait for it; the seconds that it took."""
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < bound_s, f"not within {bound_s} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - begin
