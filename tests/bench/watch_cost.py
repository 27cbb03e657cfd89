"""What watching costs: `python -m tests.bench.watch_cost [--json] [--seconds 60]`.

Agents of the lab's three nodes (real SSH, recorded GB10 hardware) are watched by the real code at the default pace;
processor time is read from /proc. Also: the time of one scrape for 4 and 64 simulated nodes, and the dashboard's
processor time in a pseudo-terminal. Prints figures and the promised bounds; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from prometheus_client import generate_latest

from orchestrator.lab import nodes as lab
from orchestrator.lab.place import NODES, Place
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.sample import NodeSampled, Watched, happened_json
from orchestrator.remote.nodes import nodes
from orchestrator.view.metrics import registry
from orchestrator.watch.samples import Pace, watch
from tests import watched

PROMISED = {
    "agent_core_percent": 0.5,
    "agent_resident_mib": 40.0,
    "new_connections": 0,
    "scrape_4_ms": 20.0,
    "scrape_64_ms": 150.0,
    "top_core_percent": 5.0,
}
SCRAPES = 20
WARM_UP_S = 5.0
DRAWN_BYTES = 30_000
"""A full screen of 120×40 in colour is about 20 KB."""


def cpu_s(process: psutil.Process) -> float:
    """Processor time of a process and of its children that live."""
    return sum(
        sum(each.cpu_times()[:2])
        for each in (process, *process.children(recursive=True))
        if each.is_running()
    )


def our_agents(place: Place) -> list[psutil.Process]:
    """The agents below the lab's SSH servers."""
    found = []
    for name in NODES:
        server = psutil.Process(json.loads((place.server(name) / "pid.json").read_text())["pid"])
        below = [each for each in server.children(recursive=True) if ".pyz" in " ".join(each.cmdline())]
        found += [each for each in below if not each.children()]  # not the shell that waits for it
    return found


def connections(ports: set[int]) -> set[tuple[Any, ...]]:
    """This process's connections to the nodes, by both ends."""
    return {
        (each.laddr, each.raddr)
        for each in psutil.Process().net_connections("tcp")
        if each.raddr and each.raddr.port in ports
    }


async def agents(seconds: float) -> dict[str, Any]:
    """Processor share and memory of the agents of three nodes behind SSH, of the watching side, and connections."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        lab.prepare(place, load_profile("lab"), Path(sys.executable))
        lab.up(place)
        try:
            return await _agents(place, seconds)
        finally:
            lab.down(place)


async def _agents(place: Place, seconds: float) -> dict[str, Any]:
    cluster = load_cluster(place.cluster_file)
    asked = nodes(cluster)
    seen: dict[str, NodeSampled] = {}
    counted = 0

    def emit(happened: Watched) -> None:
        nonlocal counted
        if isinstance(happened, NodeSampled):
            seen[happened.node] = happened
            counted += 1

    task = asyncio.create_task(watch(asked, emit, Pace()))
    try:
        while len(seen) < len(asked) or min(each.sample.number for each in seen.values()) < 2:
            await asyncio.sleep(0.5)  # starting an agent costs 0.3 s of processor, once
        await asyncio.sleep(WARM_UP_S)
        children, ports = our_agents(place), {node.port for node in cluster.nodes}
        before = {child.pid: cpu_s(child) for child in children}
        held, me = connections(ports), psutil.Process()
        own, begin, first = sum(me.cpu_times()[:2]), time.monotonic(), counted
        await asyncio.sleep(seconds)
        took = time.monotonic() - begin
        shares = [(cpu_s(child) - before[child.pid]) / took * 100 for child in children]
        return {
            "agents": len(children),
            "samples": counted - first,
            "connections": len(held),
            "new_connections": len(connections(ports) - held),
            "agent_core_percent": round(max(shares), 3),
            "agent_resident_mib": round(max(child.memory_info().rss / 2**20 for child in children), 1),
            "controller_core_percent_per_node": round(
                (sum(me.cpu_times()[:2]) - own) / took * 100 / len(asked), 3
            ),
            "sample_bytes": len(json.dumps(happened_json(next(iter(seen.values())), 0.0))),
        }
    finally:
        task.cancel()
        await asyncio.wait({task})
        await asyncio.gather(*(node.close() for node in asked.values()))


def scrape_ms(nodes: int) -> tuple[float, float]:
    """Shortest and median time of one scrape; the shortest is the one that other programs disturbed least."""
    story = watched.serving(nodes, 6)
    state = story.state()
    made = registry(lambda: (state, story.now_unix_s))
    times = []
    for _ in range(SCRAPES):
        begin = time.perf_counter()
        generate_latest(made)
        times.append((time.perf_counter() - begin) * 1000)
    return round(min(times), 2), round(statistics.median(times), 2)


def top(seconds: float) -> dict[str, float]:
    """Processor share of `top` in a pseudo-terminal of 120×40, replaying four nodes at the default pace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        story = watched.serving(4, int((seconds + 3 * WARM_UP_S) / watched.EVERY_S) + 5)
        path.write_text(
            "".join(
                json.dumps(happened_json(happened, at)) + "\n" for at, happened in story.lines[-4 * 60 :]
            ),
            encoding="utf-8",
        )
        child, terminal = pty.fork()
        if child == 0:
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
            os.execv(sys.executable, [sys.executable, "-m", "orchestrator", "top", "--replay", str(path)])  # noqa: S606 - our own program
        drawn = 0

        def drain() -> None:
            nonlocal drawn
            try:
                while data := os.read(terminal, 65536):
                    drawn += len(data)
            except OSError:
                return

        threading.Thread(target=drain, daemon=True).start()
        while drawn < DRAWN_BYTES:
            time.sleep(0.5)  # until the first screens are there: starting is not what is measured
        time.sleep(WARM_UP_S)
        process = psutil.Process(child)
        before, begin, bytes_before = cpu_s(process), time.monotonic(), drawn
        time.sleep(seconds)
        took = time.monotonic() - begin
        share = (cpu_s(process) - before) / took * 100
        rate = (drawn - bytes_before) / took
        process.kill()
        os.waitpid(child, 0)
        return {"top_core_percent": round(share, 2), "top_terminal_bytes_per_s": round(rate)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    found: dict[str, Any] = {"schema": "sparkyard/watch-cost/v1", "load_average": os.getloadavg()[0]}
    found |= asyncio.run(agents(given.seconds))
    for count in (4, 64):
        found[f"scrape_{count}_ms"], found[f"scrape_{count}_median_ms"] = scrape_ms(count)
    found |= top(given.seconds)
    found["promised"] = PROMISED
    if given.json:
        print(json.dumps(found))
        return 0
    for key, value in found.items():
        bound = f"  (promised at most {PROMISED[key]:g})" if key in PROMISED else ""
        if key != "promised":
            print(f"{key:<34}{value}{bound}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
