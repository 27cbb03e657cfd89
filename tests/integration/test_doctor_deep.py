"""`doctor --deep` as a person runs it, on two real agents with recorded links: what can run runs, the rest says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "orchestrator" / "lab" / "recorded"
DEEP_BOUND_S = 150.0
ROOM_BYTES = 10 * 2**30


def test_deep_measures_what_it_can_and_says_what_it_cannot(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    if status.f_bavail * status.f_frsize < ROOM_BYTES:
        pytest.skip("the disk probe wants 4 GiB free for each of two nodes")
    names = ("spark-1", "spark-2")
    nodes = [
        {"name": name, "transport": "local", "root": str(tmp_path / name), "recorded": str(RECORDED / name)}
        for name in names
    ]
    place = tmp_path / "cluster.yaml"
    data = {"schema": "sparkyard/cluster/v1", "topology": "single-host", "head": "spark-1", "nodes": nodes}
    place.write_text(yaml.safe_dump(data))
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "doctor",
        "--json",
        "--profile",
        "lab",
        "--cluster",
        str(place),
    ]
    before = time.time()
    ran = subprocess.run(
        [*command, "--deep"], cwd=ROOT, capture_output=True, text=True, timeout=DEEP_BOUND_S, check=False
    )
    assert "Traceback" not in ran.stderr
    shown = json.loads(ran.stdout)
    for name in names:
        assert f"{name}: nvme: " in ran.stderr, "a progress line"
        kept = json.loads((tmp_path / name / "probes.json").read_text())
        assert kept["nvme"]["qd64_iops"] > kept["nvme"]["qd1_iops"] > 0
        assert kept["nvme"]["mismatches"] == 0
        assert before <= kept["nvme"]["unix_s"] <= time.time()
        assert "the engine on every node" in kept["missing"]["allreduce"]
        left = {path.name for path in (tmp_path / name).iterdir()}
        assert left <= {"agent", "probes.json"}, "nothing is left behind"
    open_ = {(f["check"], f["node"]): f for f in shown["findings"] if f.get("why_unknown") == "tool"}
    for check in ("cx7.bw", "nccl.allreduce", "gpu.latch"):
        for name in names:
            assert (check, name) in open_ or check == "gpu.latch", sorted(open_)
            if (check, name) in open_:
                assert open_[check, name]["measured"].startswith("not tested: ")
    again = json.loads(
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False).stdout
    )
    untested = {f["check"] for f in again["findings"] if f.get("why_unknown") == "untested"}
    assert not untested & {"disk.slow", "disk.integrity"}, "yesterday's results count today"
    assert {"cx7.jumbo", "cx7.peer"} <= untested, "recorded links lead nowhere: never fine"
