"""Load from a node: the agent starts the generator that the controller brings, passes its lines on, and stops it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator.bench.figures import decode_round
from orchestrator.bench.known import Place, engram_p99_s, place
from orchestrator.bench.source import LoadFailed, NodeLoad
from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Cluster
from orchestrator.model.goal import Goal, Package
from orchestrator.model.sample import EngramNow
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
