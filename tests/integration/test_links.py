"""Links that go wrong on real nodes: each is detected and named, healed or refused, and nothing else is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.fleet import Fleet
from tests.integration.yard import wire

SHOW_PCI = "/usr/local/libexec/yard/sys-pci.sh"


@pytest.fixture(scope="module")
def shared(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with its image everywhere and the checkpoint shared; the doctor takes its ports for a ConnectX-7's."""
    names = [node.name for node in fleet.yard.layout.nodes]
    for name in names:
        fleet.yard.run(name, SHOW_PCI)
    for verb in ("build", "share"):
        answer = fleet.do(verb)
        assert answer.exit_code == 0, answer.data["failures"]
    yield fleet
    fleet.do("unshare")
    for name in names:
        fleet.yard.run(name, SHOW_PCI, "off")


def found(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """Findings of `doctor --json` about the fast ports, by key; that a card has four of them is one."""
    done = fleet.command_line("doctor", "--json")
    assert done.stdout, done.stderr
    return {
        each["key"]: each
        for each in json.loads(done.stdout)["findings"]
        if each["severity"] in {"error", "warning"} and each["check"].startswith("cx7.")
    }


def named(fleet: Fleet, before: dict[str, dict[str, Any]], check: str, *words: str) -> bool:
    """Whether one run of the doctor finds it, beside what it found before."""
    new = [finding for key, finding in found(fleet).items() if key not in before]
    print(new)
    return any(one["check"] == check and all(word in json.dumps(one) for word in words) for one in new)


def planned(fleet: Fleet) -> list[str]:
    """What `build` and `share` still find to do, and why."""
    return [
        f"{step['node']}: {step['why']}"
        for verb in ("build", "share")
        for step in fleet.steps(fleet.do(verb))
    ]


def touched(fleet: Fleet, verb: str) -> set[str]:
    """Nodes that the verb did something on."""
    answer = fleet.do(verb)
    assert answer.exit_code == 0, answer.data["failures"]
    return {step["node"] for step in fleet.steps(answer)}


def server(fleet: Fleet, name: str) -> str:
    """Address by which the node reads the checkpoint."""
    share = fleet.facts()[name].share
    assert share is not None
    assert share.problem == ""
    return share.server


def test_a_cable_that_is_pulled_is_named_and_the_share_goes_over_the_other_rail(shared: Fleet) -> None:
    rails = [link.address for link in shared.yard.layout.node("spark-1").fabric]
    assert server(shared, "spark-3") == rails[0]
    before = found(shared)
    wire.cut(shared.yard, "spark-3", 0)
    assert named(shared, before, "cx7.port_state", "spark-3", "enp1s0f0np0")
    assert touched(shared, "share") == {"spark-1", "spark-3"}
    assert server(shared, "spark-3") == rails[1]
    assert planned(shared) == []
    wire.join(shared.yard, "spark-3", 0)
    assert set(found(shared)) <= set(before)
    assert touched(shared, "share") == {"spark-1", "spark-3"}
    assert server(shared, "spark-3") == rails[0]
    assert planned(shared) == []


def test_another_mtu_at_one_end_is_named_and_mended(shared: Fleet) -> None:
    before = found(shared)
    wire.mtu(shared.yard, "spark-2", 0, 1500)
    assert named(shared, before, "cx7.mtu", "spark-2", "enp1s0f0np0")
    mended = shared.command_line("doctor", "--fix", "--yes")
    size = shared.yard.run("spark-2", "cat", "/sys/class/net/enp1s0f0np0/mtu").strip()
    assert size == "9000", mended.stdout + mended.stderr
    assert set(found(shared)) <= set(before)
    # Its mount may have hung while large packets got lost, and TCP may wait longer than the look does.
    assert touched(shared, "share") <= {"spark-2"}
    assert planned(shared) == []
