"""Faults on real SSH nodes with a stand-in engine: the right alert fires in a real Prometheus, and clears."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.lab import nodes
from tests import alerting
from tests.alerting import Scene, scene
from tests.prometheus import needs_prometheus
from tests.standin_engine.lab import StandinLab

pytestmark = [needs_prometheus, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinLab]:
    made = StandinLab(tmp_path_factory.mktemp("lab"))
    made.profile = alerting.with_ports_of_its_own(made.profile)
    with made as running:
        assert running.do("up").exit_code == 0
        yield running


@pytest.fixture(scope="module")
def watched(lab: StandinLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    lab.command("status")  # writes the profile file
    with scene(lab.place, str(lab.place.folder / "profile.yaml"), tmp_path_factory.mktemp("watched")) as made:
        alerting.steady(made)
        yield made
        assert made.stop_monitor() == 0, made.log.read_text()
        assert "Traceback" not in made.log.read_text()


def test_one_connection_a_node_is_held(watched: Scene) -> None:
    found = watched.server.query("sparkyard_node_connections_total")
    assert [row["value"][1] for row in found] == ["1", "1", "1"]
    assert watched.server.alerts() == set()


def test_a_cut_link(watched: Scene) -> None:
    alerting.link_cut(watched)


def test_a_killed_rank(watched: Scene, lab: StandinLab) -> None:
    def again() -> None:
        assert lab.do("up").exit_code == 0

    alerting.rank_killed(watched, again)


def test_a_killed_monitor(watched: Scene) -> None:
    alerting.monitor_killed(watched)


def test_a_killed_node(watched: Scene, lab: StandinLab) -> None:
    def kill() -> None:
        server = psutil.Process(int(nodes._read(lab.place.server("spark-2") / "pid.json")["pid"]))  # type: ignore[index]
        for process in (*server.children(recursive=True), server):
            if Path(f"/proc/{process.pid}/cmdline").exists():
                os.kill(process.pid, signal.SIGKILL)

    alerting.node_killed(watched, kill, lambda: nodes.up(lab.place))
