"""The agent's `watch`: real samples over a real channel, of this machine and of a recorded node."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from node_agent.watch.page import parse
from orchestrator.lab.nodes import RECORDED
from orchestrator.model.sample import NodeSampled, NodeSilent, Sample, Watched
from orchestrator.remote import local
from orchestrator.remote.channel import AgentNode
from orchestrator.remote.node import Ask, Progressed, Reply, reply
from orchestrator.view.state import State, empty, fold_all
from orchestrator.watch.feed import Feed
from orchestrator.watch.local import SocketError, attach, serve_local, socket_path
from orchestrator.watch.record import keep
from orchestrator.watch.replay import read
from orchestrator.watch.samples import Pace, watch
from tests.watched import NAME, cluster, profile, told

Step = Callable[[int], None]


def agent(root: Path, recorded: Path | None = None) -> AgentNode:
    hello = {"root": str(root), "python": sys.executable, "recorded": str(recorded) if recorded else None}
    return AgentNode("spark-1", hello, local.dial)


async def samples(node: AgentNode, count: int, step: Step | None = None, **args: Any) -> list[Sample]:
    found: list[Sample] = []
    try:
        async for message in node.ask(Ask("watch", {"every_s": 0.2, **args}), timeout_s=30):
            if isinstance(message, Reply):
                raise AssertionError(message)
            found.append(Sample.model_validate(message.data["sample"]))
            if step is not None:
                step(len(found))
            if len(found) == count:
                break
    finally:
        await node.close()
    return found


def test_samples_of_this_machine_are_whole_and_paced(tmp_path: Path) -> None:
    found = asyncio.run(samples(agent(tmp_path), 4))
    assert [sample.number for sample in found] == [0, 1, 2, 3]
    assert {sample.hardware for sample in found} == {"live"}
    gaps = [late.monotonic_s - early.monotonic_s for early, late in pairwise(found)]
    assert all(0.1 < gap < 1.0 for gap in gaps), gaps
    assert found[-1].memory.total_bytes > found[-1].memory.available_bytes > 0
    assert found[-1].agent.resident_bytes < 40 << 20


def test_a_recorded_node_has_its_links_and_its_gpu_and_says_so(tmp_path: Path) -> None:
    first = asyncio.run(samples(agent(tmp_path, RECORDED / "spark-1"), 1))[0]
    assert first.hardware == "recorded"
    assert [(link.netdev, link.cage, link.up) for link in first.links] == [
        ("enp1s0f0np0", "p0", True),
        ("enp1s0f1np1", "p1", True),
        ("enP2p1s0f0np0", "p0", True),
        ("enP2p1s0f1np1", "p1", True),
    ]
    assert first.gpu is not None
    assert first.gpu.sm_max_mhz == 3003.0
    assert first.links[0].addresses == ("192.168.0.1/24",)


def test_a_recording_that_is_rewritten_is_followed(tmp_path: Path) -> None:
    place = tmp_path / "recorded"
    place.mkdir()
    recording = json.loads((RECORDED / "spark-1" / "node.json").read_text())
    (place / "node.json").write_text(json.dumps(recording))

    def cut(number: int) -> None:
        if number == 2:
            recording["files"]["/sys/class/net/enp1s0f0np0/operstate"] = "down\n"
            (place / "new").write_text(json.dumps(recording))
            (place / "new").replace(place / "node.json")

    found = asyncio.run(samples(agent(tmp_path / "root", place), 8, cut))
    assert [sample.links[0].up for sample in found][:2] == [True, True]
    assert found[-1].links[0].up is False


def layer(batches: int) -> dict[str, Any]:
    """What the plug-in writes of one layer's reader."""
    sums = ("rows_requested", "rows_unique", "cache_hits", "pages_read", "bytes_read", "errors", "read_s")
    latency = {"latency_bounds_us": [50], "latency": [1, batches - 1]}
    return {"batches": batches, **dict.fromkeys(sums, 0), "rows_requested": 2 * batches, **latency}


def rank_folder(root: Path, generation: int, updated_unix_s: float) -> Path:
    folder = root / "ranks" / f"{NAME}.g{generation}.r0"
    folder.mkdir(parents=True)
    status = {
        "phase": "loading",
        "phases": {"starting": 1.0, "loading": 2.0},
        "memory_low_water_bytes": 5,
        "updated_unix_s": updated_unix_s,
        "ended": None,
        "engram": {"rows_requested": 14, "layers": {"1": layer(3), "3": layer(4)}},
    }
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "rank.json").write_text(json.dumps({"memory_floor_bytes": 77, "argv": [], "api_port": 1}))
    return folder


def test_the_newest_generation_of_a_rank_is_reported_with_its_floor(tmp_path: Path) -> None:
    rank_folder(tmp_path, 1, time.time())
    rank_folder(tmp_path, 2, time.time())
    rank = asyncio.run(samples(agent(tmp_path), 1))[0].ranks
    assert [(entry.generation, entry.alive, entry.phase) for entry in rank] == [(2, True, "loading")]
    assert rank[0].memory_floor_bytes == 77
    assert rank[0].engram is not None
    assert rank[0].engram.batches == 7
    assert rank[0].engram.rows_requested == 14
    assert rank[0].engram.latency == (2, 5)


def test_a_rank_whose_guard_writes_no_more_is_not_alive(tmp_path: Path) -> None:
    rank_folder(tmp_path, 1, time.time() - 60)
    rank = asyncio.run(samples(agent(tmp_path), 1))[0].ranks[0]
    assert (rank.alive, rank.phase) == (False, "ended")
    assert rank.ended.startswith("lost")


def test_one_nvidia_smi_runs_for_many_samples(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    calls = tmp_path / "calls"
    row = "0, NVIDIA GB10, GPU-1, 580.1, 0000000F:01:00.0, 61, 62.5 W, 93 %, 2411 MHz, 3003 MHz, P0, [N/A], 1, 1"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >>{calls}\nfor i in 1 2 3 4 5 6 7 8 9; do echo "{row}"; sleep 0.1; done\nsleep 30\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{tool.parent}:{before}"
    try:
        found = asyncio.run(samples(agent(tmp_path), 6, gpu_every_s=0.2))
    finally:
        os.environ["PATH"] = before
    assert len(calls.read_text().splitlines()) == 1
    assert "--loop-ms=200" in calls.read_text()
    seen = [sample.gpu for sample in found if sample.gpu is not None]
    assert seen
    assert (seen[0].sm_mhz, seen[0].power_w) == (2411.0, 62.5)


@pytest.mark.parametrize("args", [{"every_s": 0}, {"every_s": 1e9}, {"every_s": "soon"}, {"gpu_every_s": -1}])
def test_an_unusable_pace_is_refused(tmp_path: Path, args: dict[str, Any]) -> None:
    async def attempt() -> Reply:
        node = agent(tmp_path)
        try:
            return await reply(node, Ask("watch", args), timeout_s=10)
        finally:
            await node.close()

    failure = asyncio.run(attempt()).failure
    assert failure is not None
    assert failure.kind == "protocol"


def test_the_watch_survives_a_killed_agent_and_says_that_it_was_gone(tmp_path: Path) -> None:
    async def play() -> list[Watched]:
        node = agent(tmp_path)
        seen: list[Watched] = []
        done = asyncio.Event()

        def emit(happened: Watched) -> None:
            seen.append(happened)
            if len(seen) == 3:
                asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(node.close()))
            if sum(isinstance(entry, NodeSampled) for entry in seen) >= 6:
                done.set()

        task = asyncio.create_task(watch({"spark-1": node}, emit, Pace(every_s=0.2)))
        try:
            await asyncio.wait_for(done.wait(), 20)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await node.close()
        return seen

    seen = asyncio.run(play())
    silent = [entry for entry in seen if isinstance(entry, NodeSilent)]
    assert len(silent) == 1
    assert silent[0].failure.kind == "unreachable"
    last = seen[-1]
    assert isinstance(last, NodeSampled)


def test_a_late_follower_gets_the_newest_sample_of_each_node_first() -> None:
    async def play() -> list[str]:
        times = iter(range(1000))
        feed = Feed(empty(profile(), cluster()), lambda: float(next(times)))
        for _, happened in told(5):
            feed.put(happened)
        got = []
        stream = feed.follow()
        async for _, happened in stream:
            assert isinstance(happened, NodeSampled)
            got.append(f"{happened.node}#{happened.sample.number}")
            if len(got) == 3:
                feed.put(told(6)[-1][1])
            if len(got) == 4:
                break
        await stream.aclose()
        return got

    assert asyncio.run(play()) == ["spark-1#4", "spark-2#4", "spark-3#4", "spark-3#5"]


def test_the_page_of_a_real_engine_is_reduced_to_what_views_show() -> None:
    page = parse(Path("tests/cases/sglang-metrics.txt").read_text(encoding="utf-8"))
    assert page["counters"] == {
        "prompt_tokens_total": 21.0,
        "generation_tokens_total": 20.0,
        "num_requests_total": 3.0,
    }
    assert page["gauges"]["max_total_num_tokens"] == 4096.0
    assert page["ttft"][-1] == 3.0
    assert len(page["ttft"]) == len(page["ttft_bounds_s"]) + 1


def test_a_progress_that_is_no_sample_is_a_failure_of_the_node() -> None:
    class Odd:
        name = "spark-1"

        async def ask(self, request: Ask, *, timeout_s: float) -> Any:  # noqa: ARG002 - the seam
            yield Progressed({"sample": {"schema": "sparkyard/sample/v2"}})

        async def close(self) -> None:
            return

    async def play() -> Watched:
        seen: asyncio.Queue[Watched] = asyncio.Queue()
        task = asyncio.create_task(watch({"spark-1": Odd()}, seen.put_nowait, Pace()))
        try:
            return await asyncio.wait_for(seen.get(), 5)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    silent = asyncio.run(play())
    assert isinstance(silent, NodeSilent)
    assert "not usable" in silent.failure.message


def test_top_attaches_to_a_monitor_and_sees_the_same(tmp_path: Path) -> None:
    path = socket_path(tmp_path)

    async def play() -> tuple[State, State, int]:
        feed, other = (Feed(empty(profile(), cluster()), lambda: 7.0) for _ in range(2))
        for at, happened in told(3):
            feed.put_at(happened, at)
        serving = asyncio.create_task(serve_local(feed, path))
        while not path.exists():
            await asyncio.sleep(0.01)
        attached = asyncio.create_task(attach(path, other))
        while len([node for node in other.state.nodes.values() if node.sample]) < 3:
            await asyncio.sleep(0.01)
        late = told(4)[-1]
        feed.put_at(late[1], late[0])
        while other.state.nodes["spark-3"].sample != feed.state.nodes["spark-3"].sample:
            await asyncio.sleep(0.01)
        mode = stat.S_IMODE(path.stat().st_mode)
        with pytest.raises(SocketError, match="another monitor"):
            await serve_local(feed, path)
        serving.cancel()
        with pytest.raises(SocketError, match="has ended"):
            await attached
        await asyncio.gather(serving, return_exceptions=True)
        return feed.state, other.state, mode

    feed, other, mode = asyncio.run(asyncio.wait_for(play(), 20))
    assert mode == 0o600
    assert not path.exists()
    assert {name: node.sample for name, node in feed.nodes.items()} == {
        name: node.sample for name, node in other.nodes.items()
    }


def test_a_socket_that_a_dead_monitor_left_is_taken_over(tmp_path: Path) -> None:
    path = socket_path(tmp_path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async def play() -> None:
        with pytest.raises(SocketError, match="no monitor listens"):
            await attach(path, Feed(empty(profile(), cluster()), lambda: 0.0))
        serving = asyncio.create_task(serve_local(Feed(empty(profile(), cluster()), lambda: 0.0), path))
        await asyncio.sleep(0.3)
        assert not serving.done()
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(play(), 20))


def test_a_record_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "watched.jsonl"

    async def play() -> State:
        feed = Feed(empty(profile(), cluster()), lambda: 0.0)
        task = asyncio.create_task(keep(feed, path))
        await asyncio.sleep(0.05)
        for at, happened in told(5):
            feed.put_at(happened, at)
        while not path.exists() or len(path.read_text().splitlines()) < 15:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return feed.state

    state = asyncio.run(asyncio.wait_for(play(), 20))
    lines, skipped = read(path)
    assert skipped == 0
    assert fold_all(empty(profile(), cluster()), lines) == state
