"""Load from a node: the agent starts the generator that the controller brings, passes its lines on, and stops it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from orchestrator.bench.figures import decode_round
from orchestrator.bench.foreign import Busy, Program, foreign
from orchestrator.bench.known import Place, engram_p99_s, place
from orchestrator.bench.source import LoadFailed, NodeLoad
from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Cluster
from orchestrator.model.goal import Goal, Package
from orchestrator.model.sample import EngramNow
from orchestrator.remote.node import Ask, reply
from orchestrator.remote.nodes import nodes
from tests.clusters import lab_cluster, lab_profile
from tests.quick.test_bench_client import plan, standin


def yard(folder: Path) -> Cluster:
    return Cluster.model_validate(
        {
            "schema": "sparkyard/cluster/v1",
            "topology": "single-host",
            "head": "here",
            "nodes": [{"name": "here", "transport": "local", "root": str(folder)}],
        }
    )


def test_a_node_measures_like_the_controller_and_can_be_stopped(tmp_path: Path) -> None:
    async def measure() -> tuple[float, str, list[int]]:
        node = nodes(yard(tmp_path))["here"]
        ticks: list[int] = []
        try:
            async with standin("--rate", "200") as url:
                load = NodeLoad(node)
                models = (await load.get(f"{url}/v1/models", {})).text
                result = await load.run(plan(url, 2, 200), lambda seen, _at_s: ticks.append(sum(seen)))
                running = asyncio.create_task(load.run(plan(url, 1, 100_000), lambda _seen, _at_s: None))
                await asyncio.sleep(0.3)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                with pytest.raises(LoadFailed, match="ConnectError"):
                    await load.get("http://127.0.0.1:1/", {})
                return decode_round(result.samples)["decode_tok_s"], models, ticks
        finally:
            await node.close()

    rate, models, ticks = asyncio.run(measure())
    assert rate == pytest.approx(400, rel=0.1)
    assert '"stand-in"' in models
    assert ticks
    assert ticks[-1] > 100


def test_a_node_tells_its_own_programs_from_those_of_others(tmp_path: Path) -> None:
    def used_s(burner: int) -> float:
        return sum(psutil.Process(burner).cpu_times()[:2])

    async def looks(burner: int) -> tuple[Busy, Busy]:
        node = nodes(yard(tmp_path))["here"]
        try:
            found = []
            for _ in range(2):
                answer = await reply(node, Ask("busy", {}), timeout_s=20.0)
                assert answer.failure is None
                found.append(Busy.model_validate(answer.value))
                looked_s = used_s(burner)
                while used_s(burner) < looked_s + 0.2:
                    await asyncio.sleep(0.05)
            return found[0], found[1]
        finally:
            await node.close()

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burner:
        try:
            before, after = asyncio.run(looks(burner.pid))
        finally:
            burner.kill()
    by_pid = {program.pid: program for program in after.programs}
    assert by_pid[os.getpid()].ours, "what started the agent is no foreign load"
    assert not by_pid[burner.pid].ours
    assert by_pid[burner.pid].used_s >= 0.2
    others = foreign({"here": before}, {"here": after}, frozenset(), one_host=True)["here"]
    assert others.cores > 0


def busy(at_s: float, busy_s: float, **used_s: float) -> Busy:
    """Programs by name; those that begin with `rank` are ours."""
    programs = tuple(
        Program(pid=10 + place, started_ticks=1, name=name, used_s=seconds, ours=name.startswith("rank"))
        for place, (name, seconds) in enumerate(used_s.items())
    )
    return Busy(unix_s=at_s, monotonic_s=at_s, cpus=20, busy_s=busy_s, programs=programs)


def test_the_load_of_others_is_what_is_left_and_has_names() -> None:
    before = {"n": busy(0, 100, rank=50, ollama=40, cron=1)}
    after = {"n": busy(10, 130, rank=60, ollama=58, cron=1.1)}
    found = foreign(before, after, frozenset(), one_host=False)["n"]
    assert found.cores == pytest.approx(2.0)
    assert found.text == "2.0 cores busy with others: ollama 1.8"
    quiet = foreign(before, {"n": busy(10, 111, rank=60, ollama=40, cron=1.1)}, frozenset(), one_host=False)
    assert (quiet["n"].cores, quiet["n"].text) == (pytest.approx(0.1), "")
    assert foreign({}, after, frozenset(), one_host=False) == {}
    # on one host the other nodes' ranks are nobody's foreign load, and neither is the measuring program
    both = {"n": after["n"], "m": busy(10, 130, **{"rank-2": 60, "ollama": 58, "cron": 1.1})}
    assert foreign({"n": before["n"]}, both, frozenset({11}), one_host=True)["n"].cores == pytest.approx(0.2)


def goal(listen: str = "127.0.0.1", topology: str = "single-host") -> Goal:
    profile = lab_profile()
    ports = profile.ports.model_copy(update={"listen": listen})
    cluster = lab_cluster().model_copy(update={"topology": topology})
    return Goal(profile.model_copy(update={"ports": ports}), cluster, Package("0" * 64, 1))


def test_load_comes_from_the_last_worker_that_reaches_the_api() -> None:
    assert place(goal(), None) == Place("spark-3", "http://127.0.0.1:30040")
    assert place(goal(), "spark-2").node == "spark-2"
    assert place(goal("0.0.0.0", "switch"), None).node == "spark-3"
    assert place(goal("10.0.0.1", "switch"), None) == Place("spark-3", "http://10.0.0.1:30040")


def test_an_api_on_loopback_is_measured_from_the_head_and_that_is_said() -> None:
    found = place(goal(topology="switch"), None)
    assert found.node == "spark-1"
    assert "load comes from the head" in found.remark
    with pytest.raises(ConfigError, match="the API listens on 127"):
        place(goal(topology="switch"), "spark-2")
    with pytest.raises(ConfigError, match="no node is called 'nobody'"):
        place(goal(), "nobody")


def test_the_99th_percentile_of_look_ups_is_that_of_the_run() -> None:
    bounds = (100, 1000, 10_000)
    before = EngramNow(latency_bounds_us=bounds, latency=(0, 0, 500, 0))
    now = EngramNow(latency_bounds_us=bounds, latency=(980, 20, 500, 0))
    assert engram_p99_s(now, before) == pytest.approx(1000e-6)
    assert engram_p99_s(now, None) == pytest.approx(10_000e-6)
    assert engram_p99_s(now, now) is None
    assert engram_p99_s(None, None) is None
