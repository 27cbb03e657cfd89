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
NEWS_S = 60.0
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


POINTS = ("desired", "workers", "head", "starting", "gate", "loading", "canary", "smoke")


def boot_under_kills(lab: RealLab) -> KilledBoot:
    """`up` on a lab that is stopped; at every point it is killed and started again.

    At the end the controller is dead, and its boot is as good as done.
    """
    generation = lab.generation() + 1
    reached: dict[str, Callable[[Log], bool]] = {
        "desired": lambda log: any(title.startswith("desired") for title in log.stages()),
        "workers": lambda log: "start the workers" in log.stages(),
        "head": lambda log: "start the head" in log.stages(),
        "starting": lambda log: bool(log.stages()) and phase(lab, generation) == "starting",
        "gate": lambda log: any(title.startswith("open the launch gate") for title in log.stages()),
        "loading": lambda log: bool(log.stages()) and phase(lab, generation) in {"loading", "kv", "graphs"},
        "canary": lambda log: "ask the canary" in log.stages(),
        "smoke": lambda log: "smoke the API" in log.stages(),
    }
    killed: list[str] = []
    guards: set[int] = set()
    for name in POINTS:
        log = Log(lab)
        with started(lab, "up", "--yes", "--json") as process:
            over = partial(_ended_or, process, partial(reached[name], log))
            until(over, COMES_BACK_S, f"the boot comes to {name}")
            if process.poll() is None:
                kill(process)
                killed.append(f"{name} in phase {phase(lab, generation) or 'none'}")
            else:
                assert process.returncode == 0, log.last()
        if name in {"starting", "smoke"}:
            guards |= {guard(lab, rank).pid for rank in range(3)}
    return KilledBoot(tuple(killed), frozenset(guards), generation)


def _ended_or(process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> bool:
    return process.poll() is not None or reached()
