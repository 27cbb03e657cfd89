"""Faults on the lab with real SGLang: panels, alerts and gaps in a real Prometheus, and `top` in a real terminal."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.lab import nodes
from tests import alerting, hog
from tests.alerting import Scene, scene
from tests.prometheus import needs_prometheus, panels
from tests.reallab import RealLab
from tests.terminal import needs_tmux, shown

pytestmark = [needs_prometheus, pytest.mark.timeout(900)]
HOG_LEAVES_BYTES = 640 << 20
"""Above the guard's floor: under the alert's 1 GiB, and far enough from a kill."""
HOG_MAX_BYTES = 12 << 30
ALERT_BOUND_S = 180
"""A host whose memory is taken answers slowly while it takes back its caches."""
SIZES = ((80, 24), (120, 40), (200, 60))


@pytest.fixture(scope="module")
def lab(served: Path) -> RealLab:
    made = RealLab(served)
    made.do("up")  # nothing, unless a test before left it stopped
    return made


@pytest.fixture(scope="module")
def watched(lab: RealLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(lab.place, "lab", tmp_path_factory.mktemp("watched")) as made:
        alerting.steady(made)
        yield made
        assert made.stop_monitor() == 0, made.log.read_text()
        assert "Traceback" not in made.log.read_text()


def test_one_connection_a_node_is_held(watched: Scene) -> None:
    found = watched.server.query("sparkyard_node_connections_total")
    assert [row["value"][1] for row in found] == ["1", "1", "1"]
    assert watched.server.alerts() == set()


def test_every_panel_has_data(watched: Scene, lab: RealLab) -> None:
    for number in range(6):
        assert lab.ask(f"Question {number}: where does the river end?", 24) == 24
        time.sleep(1)
    server = watched.server
    server.wait(lambda: bool(server.query("sparkyard:generated_tokens:rate1m > 0")), 30, "tokens are counted")
    server.wait(
        lambda: len(server.query("rate(sparkyard_engram_rows_total[1m]) > 0")) == 3, 30, "rows are counted"
    )
    host = bool(server.query('up{job="node"} == 1'))
    server.wait(lambda: bool(server.query("sparkyard_canary_success == 1")), 60, "a canary is answered")
    wanted = [entry for entry in panels() if host or "node_exporter" not in entry[1]]
    # One host, one drive: the drive of a node cannot be compared with those of others when no read happens.
    empty = [entry for entry in wanted if not server.query(entry[2])]
    assert empty == []
    assert len(wanted) > 40


def test_no_series_twice(watched: Scene) -> None:
    names = {
        job: set(watched.server.get("label/__name__/values", **{"match[]": f'{{job="{job}"}}'}))
        for job in ("sparkyard", "sglang", "node")
    }
    assert len(watched.server.query('up{job="sglang"} == 1')) == 3
    meta = {name for name in names["sparkyard"] if not name.startswith("sparkyard_")}
    for one, other in (("sparkyard", "sglang"), ("sparkyard", "node"), ("sglang", "node")):
        assert names[one] & names[other] <= meta


@needs_tmux
@pytest.mark.parametrize("size", SIZES)
def test_top_in_a_terminal_attaches_to_the_monitor(
    watched: Scene, lab: RealLab, size: tuple[int, int]
) -> None:
    lab.ask("Once upon a time", 32)
    wanted = ["serving", "spark-1", "spark-3", "ready", "monitor", "tokens/s"]
    wanted += ["═", "ROWS/s"] if size[0] > 100 else []
    text = shown(watched.command("top"), size, lambda screen: all(word in screen for word in wanted))
    for word in wanted:
        assert word in text, text
    rows = text.rstrip("\n").split("\n")
    assert len(rows) == size[1]
    assert max(len(row) for row in rows) <= size[0]


def test_a_cut_link(watched: Scene) -> None:
    alerting.link_cut(watched)


def test_a_memory_hog(watched: Scene) -> None:
    """Another process takes the memory above the guard's floor; the guard need not kill, the alert must fire."""
    margin = int(min(float(row["value"][1]) for row in watched.server.query("sparkyard_memory_margin_bytes")))
    floor = int(max(float(row["value"][1]) for row in watched.server.query("sparkyard_memory_floor_bytes")))
    assert margin > 1 << 30, "the lab is near its floor before the test"
    if margin - HOG_LEAVES_BYTES > HOG_MAX_BYTES:
        pytest.skip(f"{margin - HOG_LEAVES_BYTES} bytes to take: more than this test may")
    argv = [sys.executable, hog.__file__, "--keep", str(floor + HOG_LEAVES_BYTES)]
    hungry = subprocess.Popen(argv, stdin=subprocess.PIPE)
    try:
        watched.server.wait(
            lambda: any(name == "MemoryFloorNear" for name, _ in watched.server.alerts()),
            ALERT_BOUND_S,
            "MemoryFloorNear fires",
        )
    finally:
        hungry.kill()
        hungry.wait()
    watched.clears("MemoryFloorNear", ALERT_BOUND_S)
    assert len(watched.server.query("sparkyard_rank_up == 1")) == 3


def test_a_killed_monitor(watched: Scene) -> None:
    alerting.monitor_killed(watched)


def test_a_killed_rank(watched: Scene, lab: RealLab) -> None:
    alerting.rank_killed(watched, lambda: lab.do("up"))


def test_a_killed_node(watched: Scene, lab: RealLab) -> None:
    def kill() -> None:
        record = nodes._read(lab.place.server("spark-2") / "pid.json")
        assert record is not None
        server = psutil.Process(int(record["pid"]))
        for process in (*server.children(recursive=True), server):
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended, a zombie too
                if process == server or ".pyz" in " ".join(process.cmdline()):
                    process.send_signal(signal.SIGKILL)

    alerting.node_killed(watched, kill, lambda: nodes.up(lab.place))
