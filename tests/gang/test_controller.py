"""Controllers that die: a monitor, and `serve` in every phase of a boot. What they started is adopted, not repeated."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import psutil
import pytest

from orchestrator.verbs import events_path
from orchestrator.watch.bounds import bounds
from orchestrator.watch.guardian import PULSE_TIMEOUT_S
from orchestrator.watch.policy import Policy
from tests.guarded import guard, serves
from tests.realgang import COMES_BACK_S, RealLab, headline, kept, scheduler, until
from tests.standin_engine.lab import ROOT

pytestmark = pytest.mark.unproven
LOOK_S = 1.0
SHIPPED = bounds(Policy(), LOOK_S + PULSE_TIMEOUT_S)
NEWS_S = 60.0
"""From the start of a command until it says something, on a busy machine."""
STILL_S = 20.0
"""So long nothing may be started again: many looks."""


class Log:
    """Lines that are added to `events.jsonl` from now on."""

    def __init__(self, lab: RealLab) -> None:
        self._path = events_path(lab.place.cluster_file)
        self._begin = self._path.stat().st_size if self._path.exists() else 0

    def events(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._begin)
            return [json.loads(line) for line in file.read().splitlines() if line.endswith(b"}")]

    def said(self, beginning: str) -> bool:
        return any(e["event"] == "Said" and e["text"].startswith(beginning) for e in self.events())

    def stages(self) -> list[str]:
        return [event["title"] for event in self.events() if event["event"] == "StageStarted"]

    def last(self) -> str:
        return str(self.events()[-5:])


@contextmanager
def started(lab: RealLab, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The product as a process of its own; ended at the latest with the test."""
    with (lab.place.folder / "controller.err").open("ab") as errors:
        process = subprocess.Popen(lab.command(*words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def monitor(*more: str) -> tuple[str, ...]:
    return ("monitor", "--port", "0", "--canary-every", "10", "--look-every", f"{LOOK_S:g}", *more)


def ended_or(process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> bool:
    return process.poll() is not None or reached()


def phase(lab: RealLab, generation: int, rank: int = 0) -> str:
    try:
        return str(json.loads((lab.rank_folder(generation, rank) / "status.json").read_text())["phase"])
    except (OSError, ValueError):
        return ""


def test_a_killed_monitor_is_replaced_and_adopts_what_it_finds(serving: RealLab) -> None:
    """Killed while the gang is well, then in the middle of a restart: one restart in all, carried on by the third."""
    lab, generation = serving, serving.generation()
    evidence = events_path(lab.place.cluster_file).parent / "evidence"
    first = Log(lab)
    with started(lab, *monitor()) as process:
        until(lambda: first.said("gang: idle"), NEWS_S, "the first monitor finds the gang well")
        kill(process)
    assert lab.generate(30, 8).status_code == httpx.codes.OK
    scheduler(lab, 2).kill()
    second = Log(lab)
    with started(lab, *monitor()) as process:
        named_s = until(lambda: second.said("gang: dead rank: spark-3: rank 2"), NEWS_S, "the rank is named")
        until(lambda: phase(lab, generation + 1) == "starting", COMES_BACK_S, "the head is started again")
        kill(process)
    third = Log(lab)
    begin = time.monotonic()
    with started(lab, *monitor()) as process:
        carried = f"carrying on with generation {generation + 1}"
        until(lambda: third.said(carried), NEWS_S + SHIPPED.orphan_s, "the boot is carried on")
        carried_s = time.monotonic() - begin
        until(lambda: third.said("it serves again"), COMES_BACK_S, "it serves again")
        process.send_signal(signal.SIGTERM)
        assert process.wait(NEWS_S) in {0, 130}
    print(f"named {named_s:.1f} s and carried on {carried_s:.1f} s after the start of a monitor")
    assert carried_s <= NEWS_S + SHIPPED.orphan_s
    assert not third.said("restart: ")
    assert lab.generation() == generation + 1
    found = headline(kept(evidence))
    assert (found["cause"], found["ranks"]) == ("killed", [2])
    assert lab.generate(30, 8).status_code == httpx.codes.OK
    assert serves(lab)


def test_stop_during_the_monitor_stays_stopped(serving: RealLab) -> None:
    lab, log = serving, Log(serving)
    with started(lab, *monitor()) as process:
        until(lambda: log.said("gang: idle"), NEWS_S, "the monitor finds the gang well")
        done = subprocess.run(
            lab.command("stop", "--json"), cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout
        assert not [r for here in lab.facts().values() for r in here.ranks if r.alive]
        until(lambda: log.said("gang: stopped"), NEWS_S, "the monitor sees that it is stopped")
        time.sleep(STILL_S)
        assert process.poll() is None
    assert not log.said("restart: ")
    facts = lab.facts()
    assert not [r for here in facts.values() for r in here.ranks if r.alive]
    assert {here.desired.state for here in facts.values() if here.desired} == {"stopped"}


def test_serve_is_killed_in_each_phase_and_the_boot_adopted(lab: RealLab) -> None:
    """One boot; at every stage and phase of it the controller is killed and started again."""
    assert lab.do("stop").exit_code == 0
    generation = lab.generation() + 1
    points: list[tuple[str, Callable[[Log], bool]]] = [
        ("desired", lambda log: any(title.startswith("desired") for title in log.stages())),
        ("workers", lambda log: "start the workers" in log.stages()),
        ("head", lambda log: "start the head" in log.stages()),
        ("starting", lambda log: bool(log.stages()) and phase(lab, generation) == "starting"),
        ("gate", lambda log: "open the launch gate" in log.stages()),
        ("loading", lambda log: bool(log.stages()) and phase(lab, generation) in {"loading", "kv", "graphs"}),
        ("canary", lambda log: "ask the canary" in log.stages()),
        ("smoke", lambda log: "smoke the API" in log.stages()),
    ]
    killed: list[str] = []
    guards: set[int] = set()
    for name, reached in points:
        log = Log(lab)
        with started(lab, "serve", "--yes", "--json") as process:
            over = partial(ended_or, process, partial(reached, log))
            until(over, COMES_BACK_S, name)
            if process.poll() is None:
                kill(process)
                killed.append(f"{name} in phase {phase(lab, generation) or 'none'}")
            else:
                assert process.returncode == 0, log.last()
        if name in {"starting", "smoke"}:
            guards |= {guard(lab, rank).pid for rank in range(3)}
    done = subprocess.run(
        lab.command("serve", "--yes", "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMES_BACK_S,
    )
    assert done.returncode == 0, done.stdout
    print(f"killed at: {'; '.join(killed)}")
    # a phase that is over within a look may be missed; the stages may not
    assert len(killed) >= len(points) - 1
    assert lab.generation() == generation
    assert len(guards) == 3
    assert all(psutil.pid_exists(pid) for pid in guards), "a rank was started twice"
    boots = [boot for here in lab.facts().values() for boot in here.boots if boot.generation == generation]
    assert {boot.canary for boot in boots if boot.smoke} == {True}
    assert lab.generate(30, 8).status_code == httpx.codes.OK
    assert serves(lab)
