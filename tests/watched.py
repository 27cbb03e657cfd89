"""A watched cluster that is made up, the same at every call: samples and events for the views' tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.load import load_profile
from orchestrator.model.cluster import Cluster
from orchestrator.model.event import Progress, RunEnded, RunStarted, StageStarted, StepDone, WaitDone
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.profile import Profile
from orchestrator.model.sample import CanaryAnswered, FindingsSeen, Happened, NodeSampled, NodeSilent, Sample
from orchestrator.model.step import Failure
from orchestrator.view.state import State, empty, fold_all

BEGIN_UNIX_S = 1_800_000_000.0
EVERY_S = 2.0
NAME = "deepseek-v4.1-flash-tp3"
FUNCTIONS = (
    ("0000", "enp1s0f0np0", "rocep1s0f0", "p0"),
    ("0000", "enp1s0f1np1", "rocep1s0f1", "p1"),
    ("0002", "enP2p1s0f0np0", "roceP2p1s0f0", "p0"),
    ("0002", "enP2p1s0f1np1", "roceP2p1s0f1", "p1"),
)
BOUNDS_US = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 500_000, 2_000_000)
GIB = 2**30
Change = Callable[[int, int, dict[str, Any]], None]
"""(node index, tick, the sample's JSON): changes it in place."""
PHASE_AT_S = {"starting": 0, "joined": 20, "loading": 30, "kv": 230, "graphs": 250, "ready": 290}


def profile(nodes: int = 3) -> Profile:
    lab = load_profile("lab")
    return lab.model_copy(
        update={"name": NAME, "parallel": lab.parallel.model_copy(update={"tp": nodes, "padding": None})}
    )


def cluster(nodes: int = 3) -> Cluster:
    return Cluster.model_validate(
        {
            "schema": "sparkyard/cluster/v1",
            "topology": "triangle" if nodes == 3 else "switch",
            "head": "spark-1",
            "nodes": [
                {"name": f"spark-{number}", "address": f"10.0.0.{10 + number}", "root": "/var/lib/sparkyard"}
                for number in range(1, nodes + 1)
            ],
        }
    )


def addresses(index: int, nodes: int) -> dict[str, str]:
    """Network device → address: the triangle's three cables, or one subnet for each half behind a switch."""
    found = {}
    for half, netdev, _, cage in FUNCTIONS:
        second = int(half == "0002")
        if nodes == 3:
            cable = index if cage == "p0" else (index + 2) % 3
            found[netdev] = f"192.168.{2 * cable + second}.{1 if cage == 'p0' else 2}/24"
        elif cage == "p0":
            found[netdev] = f"192.168.{100 + second}.{index + 1}/24"
    return found


def sample(
    index: int, tick: int, nodes: int = 3, phase: str = "ready", generation: int = 4
) -> dict[str, Any]:
    """One sample of a sound node, as the agent sends it."""
    at_s = tick * EVERY_S
    wave = (tick * (7 + index)) % 10 / 10
    given = addresses(index, nodes)
    moved = int((2.0e9 + 1.0e9 * index) * at_s + 1e9 * wave)
    batches = 120 * tick
    latency = [0] * (len(BOUNDS_US) + 1)
    latency[3], latency[4], latency[5] = 100 * tick, 18 * tick, 2 * tick
    serving = phase == "ready"
    seen = {
        name: BEGIN_UNIX_S - 400 + since
        for name, since in PHASE_AT_S.items()
        if since <= PHASE_AT_S.get(phase, 0)
    }
    body: dict[str, Any] = {
        "schema": "sparkyard/sample/v1",
        "number": tick,
        "unix_s": BEGIN_UNIX_S + at_s,
        "monotonic_s": 5000.0 + at_s,
        "boot_id": f"boot-{index}",
        "every_s": EVERY_S,
        "hardware": "live",
        "memory": {
            "total_bytes": 121 * GIB,
            "available_bytes": int((9.5 - index % 4 * 0.4 - 0.3 * wave) * GIB) if serving else 70 * GIB,
            "free_bytes": 4 * GIB,
            "pressure_some": 0.2,
            "pressure_full": 0.0,
        },
        "processor": {"cpus": 20, "busy_s": 3.0 * at_s + wave, "idle_s": 17.0 * at_s},
        "disk": {"total_bytes": 3600 * GIB, "free_bytes": 2900 * GIB},
        "links": [
            {
                "netdev": netdev,
                "rdma": rdma,
                "cage": cage,
                "half": half,
                "addresses": [given[netdev]] if netdev in given else [],
                "up": netdev in given,
                "state": "ACTIVE" if netdev in given else "DOWN",
                "rate_gbps": 200.0,
                "sent_bytes": moved if netdev in given else 0,
                "received_bytes": moved if netdev in given else 0,
                "errors": 0,
                "congestion": 0,
                "carrier_changes": 2,
            }
            for half, netdev, rdma, cage in FUNCTIONS
        ],
        "rails_w": {"sys_total": 78.0 + 10 * wave},
        "drives": [{"name": "nvme0n1", "reads": 4000 * tick, "read_s": 0.32 * tick}],
        "ranks": [
            {
                "deployment": NAME,
                "generation": generation,
                "rank": index,
                "alive": True,
                "phase": phase,
                "phases": seen,
                "ended": "",
                "memory_floor_bytes": 4 * GIB,
                "memory_low_water_bytes": int((8.6 - index % 4 * 0.4) * GIB),
                "memory_free_low_water_bytes": 3 * GIB,
                "weights_bytes": 88 * GIB if serving else None,
                "kv_tokens": 1_030_000 if serving else None,
                "last_log_unix_s": BEGIN_UNIX_S + at_s - 1,
                "updated_unix_s": BEGIN_UNIX_S + at_s,
                "engram": {
                    "batches": batches,
                    "rows_requested": 96 * batches,
                    "rows_unique": 80 * batches,
                    "cache_hits": 20 * batches,
                    "pages_read": 60 * batches,
                    "bytes_read": 60 * 4096 * batches,
                    "errors": 0,
                    "read_s": 0.0006 * batches,
                    "latency_bounds_us": list(BOUNDS_US),
                    "latency": latency,
                }
                if serving
                else None,
            }
        ],
        "jobs": [],
        "desired": {"deployment": NAME, "generation": generation, "state": "serving", "profile": "p"},
        "agent": {"cpu_s": 0.004 * tick, "resident_bytes": 26 << 20},
        "gpu": {
            "sm_mhz": 2400.0 + 10 * index,
            "sm_max_mhz": 3003.0,
            "power_w": 62.0 + 8 * wave,
            "temperature_c": 61.0 + index,
            "utilization_percent": 93.0 if serving else 0.0,
            "pstate": "P0",
        },
    }
    if tick == 0:
        body["probes"] = {
            "rails": [
                {"unix_s": BEGIN_UNIX_S - 9000, "netdev": netdev, "peer": "spark-2", "gbps": 109.0 + index}
                for netdev in given
            ],
            "busy_mhz": 2410.0,
        }
    if index == 0 and serving:
        body["engine"] = page(tick)
    return body


def page(tick: int) -> dict[str, Any]:
    """Rank 0's reduced metrics page: about 60 tokens a second, one request every two seconds."""
    finished = float(tick)
    return {
        "gauges": {
            "num_running_reqs": 3.0,
            "num_queue_reqs": 1.0,
            "gen_throughput": 59.8,
            "token_usage": 0.41,
            "swa_token_usage": 0.37,
            "spec_accept_length": 2.7,
            "cache_hit_rate": 0.86,
            "max_total_num_tokens": 1_030_000.0,
        },
        "counters": {
            "generation_tokens_total": 120.0 * tick + (tick % 4) * 6,
            "prompt_tokens_total": 900.0 * tick,
            "num_requests_total": finished,
        },
        "ttft_bounds_s": [0.1, 0.2, 0.4, 1.0, 2.0, 4.0],
        "ttft": [0.0, 0.1 * tick, 0.5 * tick, 0.9 * tick, finished, finished, finished],
    }


@dataclass(frozen=True)
class Story:
    """What happened, and when the view looks."""

    lines: tuple[tuple[float, Happened], ...]
    now_unix_s: float
    nodes: int = 3

    def state(self) -> State:
        return fold_all(empty(profile(self.nodes), cluster(self.nodes)), self.lines)


def told(
    ticks: int, nodes: int = 3, change: Change | None = None, phase: str = "ready"
) -> list[tuple[float, Happened]]:
    """Samples of all nodes at every tick."""
    lines: list[tuple[float, Happened]] = []
    for tick in range(ticks):
        for index in range(nodes):
            body = sample(index, tick, nodes, phase)
            if change is not None:
                change(index, tick, body)
            at = BEGIN_UNIX_S + tick * EVERY_S
            lines.append((at, NodeSampled(f"spark-{index + 1}", Sample.model_validate(body))))
    return lines


def story(lines: list[tuple[float, Happened]], nodes: int = 3, later_s: float = 1.0) -> Story:
    return Story(tuple(lines), lines[-1][0] + later_s, nodes)


BOOTED: tuple[tuple[float, Happened], ...] = (
    (BEGIN_UNIX_S - 411, RunStarted("serve", NAME, ("spark-1", "spark-2", "spark-3"))),
    (BEGIN_UNIX_S - 410, StageStarted("start the ranks in order", (), ())),
    (BEGIN_UNIX_S - 401, StepDone("spark-1", "start rank 0 (generation 4)", 1.2, {})),
    (BEGIN_UNIX_S - 400, StepDone("spark-2", "start rank 1 (generation 4)", 0.9, {})),
    (BEGIN_UNIX_S - 400, StepDone("spark-3", "start rank 2 (generation 4)", 1.0, {})),
    (BEGIN_UNIX_S - 380, StepDone("spark-1", "open the launch gate", 0.1, {})),
    (BEGIN_UNIX_S - 110, WaitDone("spark-1", "rank 0 at ready", 270.4)),
    (BEGIN_UNIX_S - 108, StepDone("spark-1", "ask the canary", 1.7, {})),
    (BEGIN_UNIX_S - 92, RunEnded("serve", 0, 319.0, ())),
)


def serving(nodes: int = 3, ticks: int = 40) -> Story:
    lines = [*BOOTED, *told(ticks, nodes)]
    lines.insert(len(BOOTED) + 3, (BEGIN_UNIX_S, CanaryAnswered(NAME, ok=True, seconds=0.41)))
    return story(lines, nodes)


def booting() -> Story:
    phases = ("loading", "loading", "joined")

    def change(index: int, tick: int, body: dict[str, Any]) -> None:
        rank = body["ranks"][0]
        rank["phase"] = "kv" if index == 0 and tick > 12 else phases[index]
        rank["phases"] = {
            name: BEGIN_UNIX_S - 60 + since / 4
            for name, since in PHASE_AT_S.items()
            if since <= PHASE_AT_S[rank["phase"]]
        }

    head: list[tuple[float, Happened]] = [
        (BEGIN_UNIX_S - 61, RunStarted("serve", NAME, ("spark-1", "spark-2", "spark-3"))),
        (
            BEGIN_UNIX_S - 60,
            StageStarted(
                "wait until every rank is ready",
                (),
                tuple((f"spark-{n}", f"rank {n - 1} at ready", "ready within 900 s") for n in (1, 2, 3)),
            ),
        ),
        (BEGIN_UNIX_S - 1, Progress("spark-2", "rank 1 at ready", 34, 88, "GiB", "loading")),
    ]
    return story(head + told(20, change=change, phase="loading"))


def degraded() -> Story:
    """Half a cable is down, a rail is slow, one drive reads slowly, and a check has something to say."""

    def change(index: int, tick: int, body: dict[str, Any]) -> None:
        if index == 1:
            if tick > 25:
                body["links"][2] |= {"up": False, "state": "DOWN"}
            if tick == 0:
                body["probes"]["rails"][1]["gbps"] = 13.1
        if index == 2:
            body["ranks"][0]["engram"]["read_s"] *= 3.2

    lines = [*BOOTED, *told(40, change=change)]
    slow = Finding(
        check="cx7.bw",
        node="spark-2",
        link="enp1s0f1np1",
        severity=Severity.ERROR,
        measured="enp1s0f1np1 moves 13.1 Gb/s",
        expected="at least 85 Gb/s",
        evidence="ib_write_bw: 13.1 Gb/s",
        remedy="switch both nodes off, pull their plugs for 60 s",
    )
    parity = Finding(
        check="parity.driver",
        node="spark-3",
        severity=Severity.WARNING,
        measured="driver 580.142, the others have 580.173.02",
        expected="the same driver on every node",
        remedy="apt install nvidia-driver-580-open=580.173.02",
    )
    lines.insert(9, (BEGIN_UNIX_S + 4, FindingsSeen((parity, slow))))
    return story(sorted(lines, key=lambda line: line[0]))


def down() -> Story:
    """Rank 2's guard killed its engine; another node has been gone for 30 s."""

    def change(index: int, tick: int, body: dict[str, Any]) -> None:
        if index == 2 and tick > 20:
            body["ranks"][0] |= {
                "alive": False,
                "phase": "ended",
                "ended": "memory_floor: MemAvailable was 3.1 GiB, below the floor of 4.0 GiB: engine killed",
                "engram": None,
            }

    lines = [*BOOTED]
    lines += [line for line in told(40, change=change) if not _is(line[1], "spark-2", 24)]
    lines.append(
        (
            BEGIN_UNIX_S + 50.0,
            NodeSilent("spark-2", Failure("spark-2", "unreachable", "the SSH connection broke: timed out")),
        )
    )
    lines.append(
        (BEGIN_UNIX_S + 60.0, CanaryAnswered(NAME, ok=False, seconds=60.0, why="no token within 60 s"))
    )
    return story(sorted(lines, key=lambda line: line[0]))


def _is(happened: Happened, node: str, after: int) -> bool:
    return isinstance(happened, NodeSampled) and happened.node == node and happened.sample.number > after


STORIES: dict[str, Callable[[], Story]] = {
    "booting": booting,
    "serving": serving,
    "degraded": degraded,
    "down": down,
}
