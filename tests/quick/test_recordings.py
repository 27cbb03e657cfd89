"""The lab's recorded nodes are what the generator makes, and the readers understand all of them."""

from __future__ import annotations

import json

import pytest

from node_agent.facts import Recorded, collect
from orchestrator.model.hardware import Hardware
from tests.nodes import gb10


@pytest.mark.parametrize("name", ["spark-1", "spark-2", "spark-3"])
def test_the_labs_recordings_are_current(name: str) -> None:
    stored = json.loads((gb10.LAB / name / "node.json").read_text())
    assert stored == gb10.cluster("fe-triangle")[name], "run: python -m tests.nodes.gb10"


@pytest.mark.parametrize("name", sorted(gb10.CLUSTERS))
def test_every_fact_of_a_healthy_node_is_read_without_error(name: str) -> None:
    for recording in gb10.cluster(name).values():
        hardware = Hardware.model_validate(collect(Recorded(recording), timeout_s=5.0))
        for fact_name in Hardware.model_fields["facts"].annotation.model_fields:  # type: ignore[union-attr]
            fact = getattr(hardware.facts, fact_name)
            assert fact is None or fact.error is None, (fact_name, fact.error)


def test_the_cages_of_a_triangle_are_found_from_sysfs() -> None:
    hardware = Hardware.model_validate(collect(Recorded.load(str(gb10.LAB / "spark-2")), timeout_s=5.0))
    links = hardware.facts.links
    assert links is not None
    assert links.value is not None
    found = {
        (function.netdev, function.rdma, function.cage, function.domain) for function in links.value.functions
    }
    assert found == {
        ("enp1s0f0np0", "rocep1s0f0", "p0", "0000"),
        ("enp1s0f1np1", "rocep1s0f1", "p1", "0000"),
        ("enP2p1s0f0np0", "roceP2p1s0f0", "p0", "0002"),
        ("enP2p1s0f1np1", "roceP2p1s0f1", "p1", "0002"),
    }


def test_the_machine_is_recorded_and_the_moment_is_live() -> None:
    from node_agent.facts import Live

    facts = collect(Live(), Recorded.load(str(gb10.LAB / "spark-1")), timeout_s=5.0)["facts"]
    assert {name for name, fact in facts.items() if fact["origin"] == "live"} == {
        "host", "clock", "memory", "space", "nfs", "docker", "listeners", "processes", "probes",
    }  # fmt: skip


def test_a_hung_tool_costs_its_own_fact_only() -> None:
    recording = gb10.node(gb10.Unit(1))
    from node_agent.facts import gpu

    recording["commands"][" ".join(gpu.QUERY)] = {"hangs": True}
    facts = collect(Recorded(recording), timeout_s=5.0)["facts"]
    assert facts["gpu"]["error"]["kind"] == "timeout"
    assert [name for name, fact in facts.items() if fact["error"]] == ["gpu"]
