"""How long facts take: one idle node, four nodes with tools as slow as recorded, 64 simulated nodes.

`python -m tests.bench.doctor --json` prints the figures; nothing here asserts. Tools are stand-ins that sleep as long
as the recorded delays below and print what the recordings hold, so the figures are those of the collector.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from node_agent.facts import Live, collect
from node_agent.facts.source import Ran, Recorded
from orchestrator.each import look
from orchestrator.model.cluster import Cluster
from orchestrator.remote.node import Ask, Message, Reply, reply
from orchestrator.remote.nodes import nodes
from tests.nodes import gb10

# Seconds that tools took in public reports and on the machines at hand; nvidia-smi on GB10: 0.05 to 0.6.
DELAYS_S = {
    "nvidia-smi": 0.35,
    "fwupdmgr": 0.30,
    "docker": 0.08,
    "journalctl": 0.15,
    "dpkg": 0.20,
    "ethtool": 0.03,
    "nvme": 0.02,
    "ibv_devinfo": 0.02,
    "ip": 0.01,
    "timedatectl": 0.03,
    "python3": 0.10,
}
ANSWER_S = 0.3
REPEATS = 5
LOOK_TIMEOUT_S = 60.0


class Delayed(Recorded):
    """A recording whose commands take as long as the real tools."""

    def run(self, *argv: str, timeout_s: float, privileged: bool = False) -> Ran | None:
        time.sleep(min(DELAYS_S.get(argv[0], 0.0), timeout_s))
        return super().run(*argv, timeout_s=timeout_s, privileged=privileged)


def one_node() -> dict[str, float]:
    """Facts of one node with recorded delays, and of this machine as it is."""
    source = Delayed(gb10.node(gb10.Unit(1)))
    delayed = [collect(source, timeout_s=30.0)["took_s"] for _ in range(REPEATS)]
    live = [collect(Live(), timeout_s=30.0)["took_s"] for _ in range(REPEATS)]
    return {
        "one_node_s": statistics.median(delayed),
        "one_node_worst_s": max(delayed),
        "this_machine_s": statistics.median(live),
    }


def stand_ins(folder: Path, unit: gb10.Unit) -> None:
    """Executables named like the tools: each sleeps its delay and prints what the recording holds for its arguments."""
    answers: dict[str, dict[str, str]] = {}
    recording = gb10.node(unit)
    for line, output in recording["commands"].items():
        tool, _, arguments = line.partition(" ")
        text = (
            output
            if isinstance(output, str)
            else "".join(f"{item}\n" for item in output)
            if isinstance(output, list)
            else ""
        )
        answers.setdefault(tool, {})[arguments] = text
    for tool, known in answers.items():
        if tool == "python3":
            continue
        cases = []
        for number, (arguments, text) in enumerate(known.items()):
            (folder / f"{tool}.{number}").write_text(text)
            cases.append(f"'{arguments}') cat '{folder}/{tool}.{number}';;")
        script = f'#!/bin/sh\nsleep {DELAYS_S.get(tool, 0.0)}\ncase "$*" in\n' + "\n".join(cases) + "\nesac\n"
        (folder / tool).write_text(script)
        (folder / tool).chmod(0o755)


async def agents(count: int, folder: Path) -> tuple[float, list[float], float]:
    """Real agents over pipes: wall seconds of all together, of each alone, and CPU seconds of all together."""
    data = {
        "schema": "sparkyard/cluster/v1",
        "topology": "single-host",
        "head": "spark-1",
        "nodes": [
            {"name": f"spark-{index}", "transport": "local", "root": str(folder / f"root-{index}")}
            for index in range(1, count + 1)
        ],
    }
    asked = nodes(Cluster.model_validate(data))
    try:
        for node in asked.values():
            await reply(node, Ask("ping"), timeout_s=LOOK_TIMEOUT_S)
        alone = []
        for node in asked.values():
            begin = time.monotonic()
            await reply(node, Ask("facts", {"hardware": True}), timeout_s=LOOK_TIMEOUT_S)
            alone.append(time.monotonic() - begin)
        before = _children_cpu_s(asked)
        begin = time.monotonic()
        await look(asked, {name: {"hardware": True} for name in asked})
        together = time.monotonic() - begin
        return together, alone, _children_cpu_s(asked) - before
    finally:
        await asyncio.gather(*(node.close() for node in asked.values()))


def _children_cpu_s(_: object) -> float:
    """CPU seconds of this process and of every process below it, the agents' ended tools among them."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = sum(os.times()[:4])
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        spent[int(name)] = sum(int(field) for field in fields[11:15]) / ticks
    mine = {os.getpid()}
    grew = True
    while grew:
        below = {pid for pid, parent in parents.items() if parent in mine} - mine
        grew = bool(below)
        mine |= below
    return total + sum(spent.get(pid, 0.0) for pid in mine - {os.getpid()})


class Simulated:
    """A node that answers after `ANSWER_S`."""

    def __init__(self, name: str, value: dict[str, Any]) -> None:
        self.name = name
        self._value = value

    async def ask(self, request: Ask, *, timeout_s: float) -> AsyncIterator[Message]:  # noqa: ARG002 - the seam's
        await asyncio.sleep(ANSWER_S)
        yield Reply(self._value)

    async def close(self) -> None:
        """Nothing is open."""


async def simulated(count: int, value: dict[str, Any]) -> float:
    """Wall seconds for so many nodes."""
    asked = {
        f"spark-{index}": Simulated(f"spark-{index}", {**value, "node": f"spark-{index}"})
        for index in range(count)
    }
    begin = time.monotonic()
    await look(asked, {})
    return time.monotonic() - begin


def measure() -> dict[str, Any]:
    """All figures."""
    figures: dict[str, Any] = {"schema": "sparkyard/bench-doctor/v1", "cores": os.cpu_count(), **one_node()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = folder / "tools"
        tools.mkdir()
        stand_ins(tools, gb10.Unit(1))
        path = os.environ["PATH"]
        os.environ["PATH"] = f"{tools}:{path}"
        try:
            together, alone, cpu_s = asyncio.run(agents(4, folder))
        finally:
            os.environ["PATH"] = path
    figures |= {"four_nodes_s": together, "four_slowest_alone_s": max(alone), "four_cpu_s": cpu_s}
    figures["four_bound_s"] = max(1.5 * max(alone), 1.2 * cpu_s / (os.cpu_count() or 1))
    value = _look_value()
    figures["simulated_4_s"] = statistics.median(asyncio.run(simulated(4, value)) for _ in range(REPEATS))
    figures["simulated_64_s"] = statistics.median(asyncio.run(simulated(64, value)) for _ in range(REPEATS))
    figures["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


def _look_value() -> dict[str, Any]:
    """A whole answer of a node, hardware with it."""
    host = {"hostname": "a", "kernel": "b", "machine": "c", "python": "3.12", "cpus": 20, "user": "spark"}
    return {
        "boot_id": "b",
        "machine_id": "m",
        "agent": "0" * 64,
        "now_unix_s": time.time(),
        "host": host,
        "memory": {"total_bytes": 1, "available_bytes": 1},
        "hardware": collect(Recorded(gb10.node(gb10.Unit(1))), timeout_s=10.0),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = measure()
    if given.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:24} {figure:.3f}" if isinstance(figure, float) else f"{name:24} {figure}")


if __name__ == "__main__":
    main()
