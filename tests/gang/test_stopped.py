"""A rank whose process is stopped stops all others: it is named, and the gang comes back once.

A gang that somebody stops stays stopped: the last of all tests here, so that nothing has to be started after it.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import httpx

from tests.controllers import NEWS_S, Log, monitor, started
from tests.realgang import BOUNDS, RealLab, restarted_once, scheduler, until, watched
from tests.standin_engine.lab import ROOT

STOP_S = 300.0
STILL_S = 20.0
"""So long nothing may be started again: many looks."""


def test_a_rank_stopped_while_idle(serving: RealLab, tmp_path: Path) -> None:
    victim = scheduler(serving, 1)
    restarted_once(
        watched(serving, tmp_path),
        victim.suspend,
        verdict="hung: spark-2: 1 of",
        within_s=BOUNDS.stopped_s,
        cause="stopped",
        ranks=[1],
    )


def test_a_rank_stopped_while_generating(serving: RealLab, tmp_path: Path) -> None:
    victim = scheduler(serving, 2)
    watch = watched(serving, tmp_path)
    lost: list[str] = []

    def ask() -> None:
        """A request that will not be answered: its gang is stopped."""
        try:
            lost.append(str(serving.generate(30, 1500).status_code))
        except httpx.HTTPError as error:
            lost.append(type(error).__name__)

    async def stop_in_the_middle() -> None:
        asking = asyncio.create_task(asyncio.to_thread(ask))
        await asyncio.sleep(3)
        watch.mark()
        victim.suspend()
        await asyncio.wait({asking}, timeout=0.1)
        assert lost == [], "it was still in work"

    restarted_once(
        watch,
        stop_in_the_middle,
        verdict="hung: spark-3: 1 of",
        within_s=BOUNDS.stopped_s,
        cause="stopped",
        ranks=[2],
    )
    assert lost
    assert lost != ["200"]


def test_stop_during_the_monitor_stays_stopped(serving: RealLab) -> None:
    lab, log = serving, Log(serving)
    with started(lab, *monitor()) as process:
        until(lambda: log.said("gang: idle"), NEWS_S, "the monitor finds the gang well")
        done = subprocess.run(
            lab.command("stop", "--json"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=STOP_S,
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
