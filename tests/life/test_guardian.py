"""The monitor's watch over real agents, guards and SSH, with a stand-in engine: what dies is named and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.lab import nodes
from orchestrator.lab.place import NODES
from orchestrator.model.sample import BreakerMoved
from orchestrator.verbs import converging
from orchestrator.watch.maintenance import maintain
from orchestrator.watch.policy import Policy
from orchestrator.watch.verdict import State
from tests.guarded import Watched, engine, guard, serves
from tests.standin_engine.lab import StandinLab

FAST = Policy(
    canary_pace_s=2, canary_s=3, recheck_s=0.5, settle_s=1, stopped_s=2, hang_s=4, orphan_s=3, back_off_s=0.5
)
BOUND_S = 200.0
"""A restart takes 3 s on a free machine; the bound is for a busy one."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinLab]:
    with StandinLab(tmp_path_factory.mktemp("lab")) as running:
        assert running.do("up").exit_code == 0
        yield running


def test_a_killed_rank_is_named_and_the_gang_restarted_once(lab: StandinLab, tmp_path: Path) -> None:
    victim = engine(lab, 1)
    watched = Watched(lab, tmp_path, FAST, bound_s=BOUND_S)
    watched.run(watched.serves_again, then=victim.kill)
    assert len(watched.restarts()) == 1
    assert "spark-2: rank 1 ended: engine_signal" in watched.restarts()[0].why
    assert serves(lab)
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert "stand-in rank 1" in (folder / "rank-1" / "engine.log").read_text()
    assert (folder / "rank-0" / "status.json").exists()


def test_a_killed_guard_leaves_no_second_gang(lab: StandinLab, tmp_path: Path) -> None:
    orphan, victim = engine(lab, 2), guard(lab, 2)
    watched = Watched(lab, tmp_path, FAST, bound_s=BOUND_S)
    watched.run(watched.serves_again, then=victim.kill)
    assert len(watched.restarts()) == 1
    assert "rank 2" in watched.restarts()[0].why
    assert not orphan.is_running()
    assert serves(lab)


def test_a_stopped_process_is_named(lab: StandinLab, tmp_path: Path) -> None:
    victim = engine(lab, 1)
    watched = Watched(lab, tmp_path, FAST, bound_s=BOUND_S)
    watched.run(watched.serves_again, then=lambda: os.kill(victim.pid, signal.SIGSTOP))
    assert len(watched.restarts()) == 1
    assert watched.restarts()[0].why.startswith("hung: spark-2: 1 of")
    assert serves(lab)


def test_a_killed_ssh_server_is_told_from_a_dead_host(lab: StandinLab, tmp_path: Path) -> None:
    """Its rank goes on serving: that is found out by a canary, and nothing is restarted."""
    watched = Watched(lab, tmp_path, FAST, bound_s=BOUND_S)

    def told(what: str) -> bool:
        return any("node unreachable: spark-2" in text and what in text for text in watched.said())

    async def kill_and_mend() -> None:
        os.kill(json.loads((lab.place.server(NODES[1]) / "pid.json").read_text())["pid"], signal.SIGKILL)
        while not told("network or SSH, not the host"):
            await asyncio.sleep(0.1)
        await asyncio.to_thread(nodes.up, lab.place)

    watched.run(lambda: watched.verdict() in {State.IDLE, State.BUSY}, then=kill_and_mend)
    assert not told("the host or its links")
    assert watched.restarts() == []
    assert serves(lab)


def test_stop_during_the_watch_stays_stopped(lab: StandinLab, tmp_path: Path) -> None:
    watched = Watched(lab, tmp_path, FAST, bound_s=BOUND_S)
    stopped: list[int] = []

    async def stop() -> None:
        stopped.append(int((await converging(lab.session(), "stop")).exit_code))

    watched.run(lambda: any("gang: stopped" in text for text in watched.said()), then=stop)
    assert stopped == [0]
    assert watched.restarts() == []
    assert not any(r.alive for here in lab.facts().values() for r in here.ranks)
    assert lab.do("up").exit_code == 0


def test_maintenance_keeps_the_watch_still(lab: StandinLab, tmp_path: Path) -> None:
    watched = Watched(lab, tmp_path, FAST, bound_s=BOUND_S)
    victim = engine(lab, 1)

    async def work() -> None:
        assert (await maintain(lab.session(), end=False)).exit_code == 0
        victim.kill()
        await asyncio.sleep(3 * FAST.settle_s)
        assert watched.restarts() == []
        assert (await maintain(lab.session(), end=True)).exit_code == 0

    watched.run(watched.serves_again, then=work)
    assert any("gang: maintenance" in text for text in watched.said())
    assert len(watched.restarts()) == 1
    assert asyncio.run(maintain(lab.session(), end=True)).exit_code == 0


def test_two_failed_boots_open_the_breaker_and_it_stays_open(lab: StandinLab, tmp_path: Path) -> None:
    watched = Watched(lab, tmp_path, FAST, bound_s=BOUND_S)

    victim = engine(lab, 1)

    def spoil() -> None:
        lab.fault("die-loading", 2)
        victim.kill()

    watched.run(lambda: any(isinstance(event, BreakerMoved) for event in watched.events), then=spoil)
    lab.fault("", 2)
    assert len(watched.restarts()) == 2
    assert {here.desired.state for here in lab.facts().values() if here.desired} == {"stopped"}
    assert all("given up by the watch: 2 boots" in here.desired.why for here in lab.facts().values())
    again = Watched(lab, tmp_path / "again", FAST, bound_s=BOUND_S)
    again.run(lambda: any("gang: stopped" in text for text in again.said()))
    assert again.restarts() == []
    assert lab.do("up").exit_code == 0
