"""`top` through a real OpenSSH server, in a terminal of 80×24; on a running lab and at three sizes: test_watch.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from orchestrator.model.cluster import Cluster
from orchestrator.model.sample import happened_json
from tests import watched
from tests.life.test_openssh import server
from tests.terminal import ROOT, needs_tmux, shown

__all__ = ["server"]
pytestmark = needs_tmux


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "watched.jsonl"
    lines = [json.dumps(happened_json(happened, at)) for at, happened in watched.serving(ticks=60).lines]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def replay(file: Path) -> list[str]:
    return [sys.executable, "-m", "orchestrator", "top", "--replay", str(file), "--speed", "8"]


def test_top_through_ssh_at_80_by_24(file: Path, server: Cluster) -> None:
    node = server.nodes[0]
    remote = f"cd {ROOT} && exec {' '.join(replay(file))}"
    options = ("BatchMode=yes", "LogLevel=ERROR", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
    ssh = ["ssh", "-tt", "-p", str(node.port), "-i", str(node.key)]
    ssh += [word for option in options for word in ("-o", option)]
    ssh += [f"{node.user}@{node.address}", remote]
    text = shown(ssh, (80, 24), lambda screen: "● serving" in screen and "tokens/s" in screen)
    for word in ("● serving", "▸ spark-1", "0 overview", "tokens/s", "q leave"):
        assert word in text, text
