"""Parsers meet truncated, reordered, localised, huge and binary text: never a traceback, never a wrong value."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.facts import (
    Live,
    Recorded,
    cables,
    clock,
    collect,
    disks,
    docker,
    firmware,
    forwarding,
    gpu,
    host,
    kernel,
    links,
    logs,
    memory,
    nccl,
    netplan,
    network,
    nfs,
    pasted,
    ports,
    processes,
    release,
    smart,
    text,
)
from node_agent.facts.source import UnreadableError
from orchestrator.model.hardware import Hardware
from tests.nodes import gb10

NODE = gb10.node(gb10.Unit(2))
GPU_ROWS = "\n".join(NODE["commands"][" ".join(gpu.QUERY)])
MEMINFO = "\n".join(NODE["files"]["/proc/meminfo"])
PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "gpu rows": (gpu.parse_devices, GPU_ROWS),
    "gpu reasons": (gpu.parse_reasons, "0, 0x0000000000000001"),
    "gpu apps": (gpu.parse_apps, "4711, /usr/bin/python3, a b, 41000 MiB"),
    "cgroup": (gpu.container_of, "0::/system.slice/docker-c0ffeec0ffeec0ffee.scope"),
    "meminfo": (memory.parse_meminfo, MEMINFO),
    "pressure": (memory.parse_pressure, "full avg10=1.75 avg60=0.30 avg300=0.00 total=9"),
    "buddyinfo": (memory.parse_buddyinfo, NODE["files"]["/proc/buddyinfo"][0]),
    "devinfo": (links.parse_devinfo, "\n".join(NODE["commands"]["ibv_devinfo"])),
    "rate": (links.parse_gigabits, "200 Gb/sec (4X HDR)"),
    "state": (links.parse_state, "4: ACTIVE"),
    "interfaces": (network.parse_interfaces, NODE["commands"]["ip -j address show"]),
    "routes": (network.parse_routes, NODE["commands"]["ip -j -4 route show"]),
    "neighbours": (network.parse_neighbours, NODE["commands"]["ip -j -4 neigh show"]),
    "unanswered": (network.parse_waiting, "0 1 10.0.0.12:41000 10.0.0.13:29500"),
    "iptables": (forwarding.parse_rules, "-P FORWARD DROP\n-A DOCKER-USER -j ACCEPT"),
    "netplan": (netplan.parse_names, "\n".join(NODE["files"]["/etc/netplan/40-cx7.yaml"])),
    "nccl": (nccl.parse_settings, "export NCCL_DEBUG=WARN\nGLOO_SOCKET_IFNAME='enP7s7'"),
    "mounts": (disks.parse_mounts, "\n".join(NODE["files"]["/proc/self/mounts"])),
    "exports": (nfs.parse_exports, "/models 192.168.0.0/24(ro,async,no_subtree_check)"),
    "sockets": (ports.parse_table, "\n".join(NODE["files"]["/proc/net/tcp"])),
    "address": (ports.parse_address, "0100007F"),
    "command": (processes.kind_of, "/usr/bin/python3 -m vllm.entrypoints"),
    "kernel log": (logs.parse_kernel, "\n".join(NODE["commands"][" ".join(logs.KERNEL)])),
    "ending": (logs.parse_ending, "\n".join(NODE["commands"][" ".join(logs.PREVIOUS)])),
    "services": (logs.parse_services, "Host name conflict, retrying with spark-2-528"),
    "module": (cables.parse_module, "\n".join(NODE["commands"]["ethtool -m enp1s0f0np0"])),
    "ethtool": (cables.parse_link, "\n".join(NODE["commands"]["ethtool enp1s0f0np0"])),
    "docker info": (docker.parse_info, NODE["commands"]["docker info --format {{json .}}"]),
    "containers": (
        docker.parse_containers,
        '[{"Id": "c0ffee", "State": {}, "HostConfig": {"Ulimits": null}}]',
    ),
    "images": (docker.parse_images, '[{"Id": "sha256:aa", "RepoTags": null, "Size": 9}]'),
    "fwupd": (firmware.parse_devices, NODE["commands"]["fwupdmgr get-devices --json"]),
    "smart": (smart.parse_log, NODE["commands"]["nvme smart-log /dev/nvme0 -o json"]),
    "assignments": (release.parse_assignments, "\n".join(NODE["files"]["/etc/dgx-release"])),
    "score": (release.parse_score, "torn score: 0"),
    "audit": (release.parse_audit, " nvidia-driver  NVIDIA driver"),
    "timedatectl": (clock.parse_timedatectl, "NTPSynchronized=yes"),
    "groups": (host.parse_groups, "spark adm sudo docker"),
    "fingerprint": (host.fingerprint, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== root@spark"),
    "modules": (kernel.parse_modules, "\n".join(NODE["files"]["/proc/modules"])),
    "clock cap": (kernel.parse_clock_cap, "ExecStart=/usr/bin/nvidia-smi -lgc 0,2200"),
    "number": (text.number, "11.17 W"),
    "whole": (text.whole, "41"),
}


@st.composite
def damaged(draw: st.DrawFn, good: str) -> str:
    """A good text with one or two kinds of damage."""
    made = good
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(
            st.sampled_from(["cut", "shuffle", "crlf", "comma", "binary", "repeat", "insert", "other"])
        )
        match kind:
            case "cut":
                made = made[: draw(st.integers(0, len(made)))]
            case "shuffle":
                made = "\n".join(draw(st.permutations(made.splitlines()[:12])))
            case "crlf":
                made = made.replace("\n", "\r\n")
            case "comma":
                made = made.replace(".", ",")
            case "binary":
                made = draw(st.binary(max_size=60)).decode("utf-8", "replace") + made
            case "repeat":
                made = made * draw(st.integers(2, 40))
            case "insert":
                at = draw(st.integers(0, len(made)))
                made = made[:at] + draw(st.text(max_size=30)) + made[at:]
            case _:
                made = draw(st.text(max_size=200))
    return made


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_a_parser_never_breaks(name: str) -> None:
    parse, good = PARSERS[name]
    assert parse(good) not in (None, {}, []), "the sample must be understood"

    @settings(max_examples=30, derandomize=True, deadline=None, database=None)
    @given(damaged(good))
    def run(bad: str) -> None:
        with contextlib.suppress(UnreadableError):
            json.dumps(parse(bad))

    run()


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(damaged(MEMINFO))
def test_memory_is_right_or_absent(bad: str) -> None:
    right = memory.parse_meminfo(MEMINFO)
    for line in bad.splitlines():
        # whatever whole line of the original survived must still read as it did
        if line in MEMINFO.splitlines() and bad.splitlines().count(line) == 1:
            name = line.partition(":")[0].strip()
            if sum(other.strip().startswith(name + ":") for other in bad.splitlines()) == 1:
                assert memory.parse_meminfo(bad).get(name) == right[name]


def test_decimal_commas_are_no_numbers() -> None:
    row = GPU_ROWS.replace("3.41 W", "3,41 W")
    assert gpu.parse_devices(row) == []
    assert text.number("3,41") is None


@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(
    st.dictionaries(
        st.sampled_from([f"{prefix}{end}.txt" for prefix, _, _ in pasted.KINDS for end in ("", "-2")]),
        st.one_of(
            st.text(max_size=300),
            st.sampled_from([GPU_ROWS, MEMINFO, "rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)"]),
        ),
        max_size=6,
    )
)
def test_pasted_text_never_breaks_a_capture(texts: dict[str, str]) -> None:
    recording, facts, _ = pasted.recording_of(texts)
    if facts:
        Hardware.model_validate(collect(Recorded(recording), timeout_s=5.0, only=facts))


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(st.sampled_from(sorted(NODE["commands"])), st.binary(max_size=80), st.integers(0, 3))
def test_a_damaged_tool_costs_its_own_fact_and_the_model_takes_the_rest(
    name: str, noise: bytes, status: int
) -> None:
    recording = {**NODE, "commands": {**NODE["commands"]}}
    recording["commands"][name] = {"status": status, "out": noise.decode("latin-1"), "err": ""}
    Hardware.model_validate(collect(Recorded(recording), timeout_s=5.0))


def test_without_the_right_a_fact_is_unknown_and_names_the_right(tmp_path: Any) -> None:
    from orchestrator.checks import examine
    from orchestrator.checks.check import Node, Yard

    recording = {**NODE, "commands": {**NODE["commands"], "iptables -w 2 -S": {"denied": True}}}
    hardware = Hardware.model_validate(collect(Recorded(recording), timeout_s=5.0))
    findings = examine(Yard((Node("a", hardware),), 0.0, topology="ring"))
    unread = [finding for finding in findings if finding.check == "facts.read"]
    assert [(f.link, f.why_unknown, f.measured) for f in unread] == [
        ("forwarding", "right", "needs root (iptables -S)")
    ]
    assert not [f for f in findings if f.check == "net.ring_fwd" and f.severity != "unknown"]
    if os.geteuid() != 0:
        facts = collect(Live(), timeout_s=10.0, only=["forwarding"])["facts"]
        assert facts["forwarding"]["error"]["kind"] == "right"


def test_a_missing_tool_is_unknown_with_its_package_and_does_not_fail() -> None:
    from orchestrator.checks import examine, exit_code
    from orchestrator.checks.check import Node, Yard

    commands = {
        name: text for name, text in NODE["commands"].items() if not name.startswith(("nvme", "ethtool -m"))
    }
    hardware = Hardware.model_validate(collect(Recorded({**NODE, "commands": commands}), timeout_s=5.0))
    findings = examine(Yard((Node("a", hardware),), 0.0))
    unread = {f.link: (f.why_unknown, f.measured) for f in findings if f.check == "facts.read"}
    assert unread["smart"] == ("tool", "nvme: not installed (package nvme-cli)")
    assert unread["plugs"][0] == "tool"
    assert exit_code(findings, strict=True) == 0
