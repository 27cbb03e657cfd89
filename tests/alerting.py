"""Faults on a running lab, seen by the real monitor and a real Prometheus."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from orchestrator.lab.place import NODES, Place
from tests.prometheus import Prometheus, free_port, node_exporter, prometheus

ROOT = Path(__file__).resolve().parents[1]
EVERY_S, CANARY_EVERY_S = 0.5, 10.0
FIRES_S, CLEARS_S = 40.0, 40.0
HELD_S = 75.0
"""For alerts that are held for 30 s."""
GPU_ROW = "0, NVIDIA GB10, GPU-0, 580.173.02, 0000000F:01:00.0, 61, 62.50 W, 93 %, 2411 MHz, 3003 MHz, P0, [N/A], 1, 1"


@dataclass
class Scene:
    """A lab under watch. `command` makes a command line of the product for this lab."""

    place: Place
    cluster: Path
    profile: str
    recorded: Path
    server: Prometheus
    port: int
    monitor: subprocess.Popen[bytes]
    log: Path

    def command(self, *words: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "orchestrator",
            *words,
            "--profile",
            self.profile,
            "--cluster",
            str(self.cluster),
        ]

    def node_file(self, node: str) -> Path:
        return self.recorded / node / "node.json"

    def rewrite(self, node: str, files: dict[str, str]) -> None:
        """Change the recorded machine of a node: its watch follows."""
        path = self.node_file(node)
        recording = json.loads(path.read_text(encoding="utf-8"))
        recording["files"].update(files)
        path.with_suffix(".new").write_text(json.dumps(recording), encoding="utf-8")
        path.with_suffix(".new").replace(path)

    def value(self, expression: str) -> float:
        found = self.server.query(expression)
        assert len(found) == 1, (expression, found)
        return float(found[0]["value"][1])

    def fires(self, alert: str, node: str, timeout_s: float = FIRES_S) -> float:
        return self.server.wait(
            lambda: (alert, node) in self.server.alerts(), timeout_s, f"{alert} of {node} fires"
        )

    def clears(self, alert: str, timeout_s: float = CLEARS_S) -> float:
        return self.server.wait(
            lambda: not any(name == alert for name, _ in self.server.alerts()), timeout_s, f"{alert} clears"
        )

    def start_monitor(self) -> None:
        with self.log.open("ab") as log:
            self.monitor = subprocess.Popen(
                self.command("monitor", "--observe-only", "--canary-every", str(CANARY_EVERY_S),
                             "--port", str(self.port), "--every", str(EVERY_S),
                             "--gpu-every", "1", "--gpu-every-serving", "1",
                             "--record", str(self.log.with_name("watched.jsonl"))),
                cwd=ROOT, stdout=log, stderr=log,
            )  # fmt: skip

    def stop_monitor(self) -> int:
        self.monitor.send_signal(signal.SIGTERM)
        return self.monitor.wait(30)


@contextmanager
def scene(place: Place, profile: str, folder: Path) -> Iterator[Scene]:
    """Monitor, Prometheus and node_exporter over a lab, whose recorded hardware becomes ours to change."""
    document = yaml.safe_load(place.cluster_file.read_text(encoding="utf-8"))
    recorded = folder / "recorded"
    for node in document["nodes"]:
        shutil.copytree(node["recorded"], recorded / node["name"])
        node["recorded"] = str(recorded / node["name"])
    cluster = folder / "watched" / "cluster.yaml"
    cluster.parent.mkdir()
    cluster.write_text(yaml.safe_dump(document), encoding="utf-8")
    for number, name in enumerate(NODES):
        _under_load(recorded / name / "node.json", place.node(name), NODES[number - 1])
    port = free_port()
    with node_exporter() as host, prometheus(folder / "prometheus", port, host) as server:
        made = Scene(place, cluster, profile, recorded, server, port, None, folder / "monitor.log")  # type: ignore[arg-type]
        made.start_monitor()
        try:
            yield made
        finally:
            if made.monitor.poll() is None:
                made.monitor.kill()
                made.monitor.wait()


def _under_load(path: Path, root: Path, peer: str) -> None:
    """A GPU under load and load tests that were run: the lab has neither, and the panels of both shall be seen."""
    recording = json.loads(path.read_text(encoding="utf-8"))
    for command in recording["commands"]:
        if command.startswith("nvidia-smi --query-gpu=index,name"):
            recording["commands"][command] = GPU_ROW + "\n"
    rails = [
        {"unix_s": 1.7e9, "netdev": netdev, "peer": peer, "gbps": 109.4}
        for netdev in ("enp1s0f0np0", "enP2p1s0f0np0")
    ]
    path.write_text(json.dumps(recording), encoding="utf-8")
    (root / "probes.json").write_text(json.dumps({"rdma": rails}), encoding="utf-8")


def steady(scene: Scene) -> None:
    """All nodes answer, ranks are ready, nothing fires."""
    scene.server.wait(
        lambda: len(scene.server.query("sparkyard_node_up == 1")) == 3, 60, "three nodes answer"
    )
    scene.server.wait(
        lambda: len(scene.server.query('sparkyard_rank_phase{phase="ready"} == 1')) == 3,
        60,
        "three ranks ready",
    )
    scene.server.wait(
        lambda: len(scene.server.query("count_over_time(sparkyard_gpu_clock_ratio[1m]) > 3")) == 3,
        60,
        "readings",
    )


def link_cut(scene: Scene) -> None:
    """One half of a cable, then the whole cage, then both back."""
    half = {"/sys/class/net/enP2p1s0f0np0/operstate": "down\n"}
    scene.rewrite("spark-2", half)
    scene.fires("HalfTwin", "spark-2")
    assert scene.value('sparkyard_link_up{node="spark-2",link="enP2p1s0f0np0"}') == 0
    scene.rewrite("spark-2", {"/sys/class/net/enp1s0f0np0/operstate": "down\n"})
    scene.fires("LinkDown", "spark-2")
    scene.clears("HalfTwin")
    scene.rewrite("spark-2", dict.fromkeys(("/sys/class/net/enp1s0f0np0/operstate", *half), "up\n"))
    scene.clears("LinkDown")


def rank_killed(scene: Scene, again: Callable[[], None]) -> None:
    """Guard and engine of rank 2 die without a word."""
    for pid in rank_pids(scene.place, 2):
        os.kill(pid, signal.SIGKILL)
    scene.fires("RankDown", "spark-3")
    scene.fires("ServiceDown", "")
    again()
    scene.clears("ServiceDown", 2 * CLEARS_S)
    scene.clears("RankDown", 2 * CLEARS_S)


def rank_pids(place: Place, rank: int) -> list[int]:
    """Every process of that rank, by the mark that it inherited."""
    mark = f"SPARKYARD_RANK_SPEC={place.node(NODES[rank])}/ranks/".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if any(
                    row.startswith(mark) for row in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                ):
                    found.append(int(entry))
            except OSError:
                continue
    assert found
    return found


def node_killed(scene: Scene, kill: Callable[[], None], back: Callable[[], None]) -> None:
    """A node that is gone has no values; when it is back they go on."""
    rows = 'sparkyard_link_up{node="spark-2"}'
    assert len(scene.server.query(rows)) == 4
    kill()
    scene.server.wait(lambda: scene.server.query(rows) == [], 40, "a silent node's series go stale")
    assert scene.value('sparkyard_node_up{node="spark-2"}') == 0
    scene.fires("NodeSilent", "spark-2", HELD_S)
    back()
    scene.server.wait(
        lambda: len(scene.server.query(rows)) == 4, HELD_S, "a node that is back has its series again"
    )
    scene.clears("NodeSilent", HELD_S)
    assert scene.value('sparkyard_node_connections_total{node="spark-2"}') == 2
    assert scene.value('sparkyard_node_connections_total{node="spark-1"}') == 1


def monitor_killed(scene: Scene) -> None:
    """A gap is a gap, and no counter jumps or begins anew: they live on the nodes."""
    counters = (
        "sparkyard_engram_rows_total",
        "sparkyard_engram_batch_seconds_count",
        "sparkyard_agent_cpu_seconds_total",
    )
    # What the lab's ranks have read; an agent is as old as its connection, so its own counter may begin anew.
    kept = counters[:2]
    before = {name: scene.server.query(name) for name in kept}
    assert scene.stop_monitor() == 0
    scene.server.wait(
        lambda: scene.server.query("sparkyard_node_up") == [], 20, "series of a dead monitor go stale"
    )
    scene.start_monitor()
    scene.server.wait(
        lambda: len(scene.server.query("sparkyard_node_up == 1")) == 3, 60, "the monitor is back"
    )
    time.sleep(3)
    for name in kept:
        assert all(float(row["value"][1]) == 0 for row in scene.server.query(f"resets({name}[10m])"))
        early = {row["metric"]["node"]: float(row["value"][1]) for row in before[name]}
        late = {row["metric"]["node"]: float(row["value"][1]) for row in scene.server.query(name)}
        assert set(early) <= set(late)
        assert all(late[node] >= value for node, value in early.items())
