"""The product as processes of their own on a lab, which are killed: what they said, and how far the boot had come."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from orchestrator.verbs import events_path
from tests.guarded import guard
from tests.realgang import COMES_BACK_S, KilledBoot, RealLab, until
from tests.standin_engine.lab import ROOT

LOOK_S = 1.0
NEWS_S = 120.0
"""From the start of a command until it says something, on a busy machine."""


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


def monitor() -> tuple[str, ...]:
    """The words that start one, with its shipped bounds and quick looks."""
    return ("monitor", "--port", "0", "--canary-every", "10", "--look-every", f"{LOOK_S:g}")


def phase(lab: RealLab, generation: int, rank: int = 0) -> str:
    """What the guard of a rank has written last; empty before."""
    try:
        return str(json.loads((lab.rank_folder(generation, rank) / "status.json").read_text())["phase"])
    except (OSError, ValueError):
        return ""


POINTS = ("desired", "workers", "head", "starting", "joined", "loading", "canary", "smoke")
"""Stages of a start, and phases of rank 0 within them."""


def boot_under_kills(lab: RealLab) -> KilledBoot:
    """`up` on a lab that is stopped, and `serve` after it; each is killed at the next of the points that it comes to.

    At the end the controller is dead, and its boot is as good as done.
    """
    generation = lab.generation() + 1
    left, killed = list(POINTS), list[str]()
    guards: set[int] = set()
    while left:
        log = Log(lab)
        with started(lab, "serve" if killed else "up", "--yes", "--json") as process:
            over = partial(_ended_or_at, process, partial(_reached, lab, log, generation, left))
            until(over, COMES_BACK_S, f"the boot comes to {' or '.join(left)}")
            name = next(iter(_reached(lab, log, generation, left)), "")
            if not name:
                assert process.wait() == 0, log.last()
                break
            kill(process)
        killed.append(f"{name} in phase {phase(lab, generation) or 'none'}")
        del left[: left.index(name) + 1]
        if name not in POINTS[:3]:
            guards |= {guard(lab, rank).pid for rank in range(3)}
    return KilledBoot(tuple(killed), frozenset(guards), generation)


def _reached(lab: RealLab, log: Log, generation: int, left: list[str]) -> list[str]:
    """Those points where the controller that writes this log is now, or was already."""
    stages, now = log.stages(), phase(lab, generation)
    holds = {
        "desired": any(title.startswith("desired") for title in stages),
        "workers": "start the workers" in stages,
        "head": "start the head" in stages,
        "starting": bool(stages) and now == "starting",
        "joined": bool(stages) and now == "joined",  # before it opens the gate, mostly
        "loading": bool(stages) and now in {"loading", "kv", "graphs"},
        "canary": "ask the canary" in stages,
        "smoke": "smoke the API" in stages,
    }
    return [name for name in left if holds[name]]


def _ended_or_at(process: subprocess.Popen[bytes], reached: Callable[[], list[str]]) -> bool:
    return process.poll() is not None or bool(reached())
