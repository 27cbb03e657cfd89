"""The doctor against real agents over pipes: two nodes on this machine with recorded hardware, and one that is dead."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from node_agent import remedies
from node_agent.wire import Refused
from orchestrator import doctor
from orchestrator.examination import Diagnosis, diagnose
from orchestrator.load import load_profile
from orchestrator.model.cluster import Cluster
from orchestrator.remote.node import Ask, reply
from orchestrator.verbs import Session

RECORDED = Path("orchestrator/lab/recorded").resolve()


def cluster(folder: Path, **second: object) -> Cluster:
    nodes = [
        {"name": name, "transport": "local", "root": str(folder / name), "recorded": str(RECORDED / name)}
        for name in ("spark-1", "spark-2")
    ]
    nodes[1] |= second  # type: ignore[arg-type]
    return Cluster.model_validate(
        {"schema": "sparkyard/cluster/v1", "topology": "single-host", "head": "spark-1", "nodes": nodes}
    )


def visit(session: Session) -> tuple[Diagnosis, int]:
    async def look() -> Diagnosis:
        goal, _ = session.goal()
        async with session.world() as world:
            return await diagnose(world, goal)

    found = asyncio.run(look())
    return found, doctor.answer(found, doctor.Options(), None).exit_code


def test_a_lab_of_recorded_nodes_is_judged_by_the_real_agents(tmp_path: Path) -> None:
    session = Session(load_profile("lab"), cluster(tmp_path), lambda _: None)
    judged, _ = visit(session)
    by_node = {node.name: node for node in judged.yard.nodes}
    assert all(node.hardware is not None for node in by_node.values())
    shown = [(f.check, f.node, f.measured) for f in judged.findings if f.severity in ("error", "warning")]
    # the machine's own disk, clock and processes are live; nothing of the recorded hardware may be blamed
    assert not [
        row
        for row in shown
        if row[0].partition(".")[0] in ("cx7", "gpu", "fw", "kernel", "topo", "rdma", "net", "nccl")
    ]


def test_a_dead_node_is_unknown_and_the_other_is_judged(tmp_path: Path) -> None:
    session = Session(load_profile("lab"), cluster(tmp_path, python="/nonexistent/python3"), lambda _: None)
    judged, code = visit(session)
    silent = [finding for finding in judged.findings if finding.check == "node.reachable"]
    assert [(finding.node, finding.severity) for finding in silent] == [("spark-2", "unknown")]
    assert "/nonexistent/python3" in silent[0].measured
    assert judged.yard.nodes[0].hardware is not None
    assert code in (1, 3)


def test_a_probe_that_cannot_run_is_said_and_remembered(tmp_path: Path) -> None:
    async def ask() -> tuple[str, str]:
        session = Session(load_profile("lab"), cluster(tmp_path), lambda _: None)
        async with session.world() as world:
            node = world.nodes["spark-1"]
            args = {
                "probe": "rdma",
                "device": "rocep1s0f0",
                "gid_index": 3,
                "port": 18515,
                "address": "192.0.2.1",
            }
            failed = await reply(node, Ask("probe", args), timeout_s=60.0)
            odd = await reply(node, Ask("probe", {**args, "device": "; reboot"}), timeout_s=60.0)
            return (
                failed.failure.message if failed.failure else "",
                odd.failure.message if odd.failure else "",
            )

    failed, odd = asyncio.run(ask())
    assert "perftest is not installed" in failed or "rdma: " in failed
    assert "not a device" in odd
    kept = json.loads((tmp_path / "spark-1" / "probes.json").read_text())
    assert kept["missing"]["rdma"] in failed
    session = Session(load_profile("lab"), cluster(tmp_path), lambda _: None)
    unknown = [f for f in visit(session)[0].findings if f.check == "cx7.bw"]
    assert [(f.node, f.why_unknown) for f in unknown if f.node] == [("spark-1", "tool")]


def test_repairs_are_shown_and_forbidden_ones_refused(tmp_path: Path) -> None:
    shown = remedies.apply(
        tmp_path, {"kind": "sysctl", "args": {"name": "vm.swappiness", "value": 10}, "show": True}
    )
    assert shown["commands"] == ["sysctl -w vm.swappiness=10"]
    assert shown["undo"].startswith("sysctl -w vm.swappiness=")
    for args in (
        {"kind": "sysctl", "args": {"name": "kernel.panic", "value": 1}},
        {"kind": "mtu", "args": {"device": "x; reboot", "mtu": 9000}},
        {"kind": "mtu", "args": {"device": "lo", "mtu": 99999}},
        {"kind": "rm", "args": {}},
    ):
        with pytest.raises(Refused):
            remedies.apply(tmp_path, {**args, "show": True})
    with pytest.raises(Refused):
        remedies.confirm(tmp_path, {"token": "../../etc/passwd"})


@pytest.mark.parametrize("name", ["cx7.mut", "gpu"])
def test_an_unknown_check_is_not_ignored_in_silence(name: str) -> None:
    from orchestrator.errors import ConfigError

    with pytest.raises(ConfigError, match=name):
        doctor.check_ids((name,))


def test_facts_of_this_machine_are_quick() -> None:
    from node_agent.facts import Live, collect

    started = time.monotonic()
    facts = collect(Live(), timeout_s=10.0)
    assert time.monotonic() - started < 10.0
    assert facts["facts"]["memory"]["value"]["total_bytes"] > 0
