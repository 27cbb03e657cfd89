"""The doctor on real nodes: repairs that revert themselves, users without rights, tools that hang."""

from __future__ import annotations

import asyncio
import json
import time

import yaml

from orchestrator.checks import examine
from orchestrator.checks.check import Node, Yard
from orchestrator.model.cluster import Cluster
from orchestrator.model.hardware import Hardware
from orchestrator.remote.bundle import agent
from orchestrator.remote.node import Ask, Reply, reply
from orchestrator.remote.nodes import nodes
from tests.integration.yard.session import Yard as RealYard

DEVICE = "enp1s0f0np0"
REVERT_S = 3.0
PYTHON = "/usr/bin/python3"
AS_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


def ask(made: RealYard, *requests: tuple[str, dict[str, object]]) -> list[Reply]:
    """Ask spark-1 over SSH, then end the connection and with it the agent."""

    async def work() -> list[Reply]:
        asked = nodes(Cluster.model_validate(yaml.safe_load(made.cluster.read_text())))
        try:
            answers: list[Reply] = []
            for what, args in requests:
                if what == "confirm_repair":
                    args = {"token": answers[-1].value["token"]}
                answers.append(await reply(asked["spark-1"], Ask(what, args), timeout_s=60.0))
            return answers
        finally:
            await asyncio.gather(*(node.close() for node in asked.values()))

    return asyncio.run(work())


def mtu(made: RealYard, device: str = DEVICE) -> int:
    return int(made.run("spark-1", "cat", f"/sys/class/net/{device}/mtu"))


def repair(device: str, size: int) -> tuple[str, dict[str, object]]:
    return "repair", {"kind": "mtu", "args": {"device": device, "mtu": size}, "revert_s": REVERT_S}


def test_a_wrong_mtu_reverts_itself_when_nobody_confirms(openssh: RealYard) -> None:
    before = mtu(openssh)
    answer = ask(openssh, repair(DEVICE, 1400))[0]
    assert answer.failure is None, answer.failure
    assert answer.value["undo"] == f"ip link set dev {DEVICE} mtu {before}"
    assert mtu(openssh) == 1400
    deadline = time.monotonic() + REVERT_S + 20.0
    while mtu(openssh) != before and time.monotonic() < deadline:
        time.sleep(0.5)
    assert mtu(openssh) == before


def test_a_confirmed_repair_stays(openssh: RealYard) -> None:
    before = mtu(openssh)
    answers = ask(openssh, repair(DEVICE, 4200), ("confirm_repair", {}))
    assert [answer.failure for answer in answers] == [None, None]
    time.sleep(REVERT_S + 2.0)
    assert mtu(openssh) == 4200
    openssh.run("spark-1", "ip", "link", "set", "dev", DEVICE, "mtu", str(before))


def test_the_interface_of_the_connection_is_never_touched(openssh: RealYard) -> None:
    answer = ask(openssh, repair("enP7s7", 1400))[0]
    assert answer.failure is not None
    assert "never touched" in answer.failure.message
    assert mtu(openssh, "enP7s7") != 1400


def test_what_needs_root_is_unknown_with_the_right_named(yard2: RealYard) -> None:
    place = yard2.disk("spark-1") / "agent.pyz"
    place.write_bytes(agent()[1])
    place.chmod(0o644)
    start = "import sys; sys.path.insert(0, '/srv/nvme/agent.pyz'); "
    look = start + "from node_agent.facts.__main__ import main; sys.argv = ['facts']; sys.exit(main())"
    hardware = Hardware.model_validate(json.loads(yard2.run("spark-1", *AS_NOBODY, PYTHON, "-c", look)))
    findings = examine(Yard((Node("spark-1", hardware),), 0.0, topology="ring"))
    unread = {finding.link: finding for finding in findings if finding.check == "facts.read"}
    assert unread["forwarding"].why_unknown == "right"
    assert unread["forwarding"].measured == "needs root (iptables -S)"
    assert not [
        f for f in findings if f.check == "net.ring_fwd" and f.severity in ("error", "warning", "note")
    ]
    order = f"{{'kind': 'mtu', 'args': {{'device': '{DEVICE}', 'mtu': 1400}}}}"
    act = f"{start}from pathlib import Path; from node_agent import remedies; remedies.apply(Path('/tmp/r'), {order})"
    said = yard2.run("spark-1", "sh", "-c", '"$@" 2>&1', "sh", *AS_NOBODY, PYTHON, "-c", act, check=False)
    assert "needs root; run it yourself: ip link set dev" in said
    assert mtu(yard2) != 1400
    yard2.run("spark-1", "rm", "-rf", "/tmp/r")


def test_a_hung_tool_costs_its_own_fact_only(openssh: RealYard) -> None:
    """nvidia-smi never answers: all other facts of the node are there, within the bound."""
    tool = "/usr/local/sbin/nvidia-smi"
    openssh.run(
        "spark-1",
        "sh",
        "-c",
        f"mount -t tmpfs none /usr/local/sbin && printf '#!/bin/sh\\nsleep 60\\n' >{tool}",
    )
    openssh.run("spark-1", "chmod", "+x", tool)
    try:
        started = time.monotonic()
        answer = ask(openssh, ("facts", {"hardware": True}))[0]
        assert time.monotonic() - started < 40.0
        assert answer.failure is None
        hardware = Hardware.model_validate(answer.value["hardware"])
        failed = [
            name
            for name in type(hardware.facts).model_fields
            if (f := getattr(hardware.facts, name)) and f.error
        ]
        assert failed == ["gpu"]
        headline = [f for f in examine(Yard((Node("spark-1", hardware),), 0.0)) if f.check == "gpu.present"]
        assert [(f.severity, f.measured) for f in headline] == [("error", "nvidia-smi does not answer")]
    finally:
        openssh.run("spark-1", "umount", "/usr/local/sbin")
