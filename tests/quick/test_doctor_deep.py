"""Load probes and repairs at the seam: nodes that answer, refuse, lack the tool, or cannot be reached any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.checks import examine, headlines
from orchestrator.checks.check import Node, Yard
from orchestrator.checks.remedies import Remedy, remedies
from orchestrator.deep import probe_all, streams, targets, with_pings
from orchestrator.doctor import probe_words
from orchestrator.fix import Done, Shown, fix
from orchestrator.model.hardware import Hardware
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Message, Progressed, Reply
from tests.nodes import judge

LATCHED = {"sm_mhz": 507.0, "power_w": 13.0, "temperature_c": 45.0, "utilization_percent": 97.0, "reasons": 0}


class Box:
    """A node at the seam: answers from a table, and remembers what it was asked."""

    def __init__(self, name: str, answers: dict[str, dict[str, Any] | str]) -> None:
        self.name = name
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers

    async def ask(self, request: Ask, *, timeout_s: float) -> AsyncIterator[Message]:
        assert timeout_s > 0
        self.asked.append((request.what, request.args))
        await asyncio.sleep(0)
        word = f"{request.what}:{request.args.get('probe', '')}"
        answer = self._answers.get(word, self._answers.get(request.what, {}))
        if isinstance(answer, str):
            yield Reply({}, Failure(self.name, "failed", answer))
            return
        yield Progressed({"probe": request.args.get("probe", ""), "done": 1})
        yield Reply(answer)

    async def close(self) -> None:
        """Nothing is open."""


def yard(base: str = "fe-triangle") -> Yard:
    """A healthy cluster whose links count as live."""
    nodes = []
    for name, hardware in judge.healthy(base).items():
        data = hardware.model_dump(mode="json", by_alias=True)
        data["facts"]["links"]["origin"] = "live"
        nodes.append(Node(name, Hardware.model_validate(data), offset_s=0.0))
    return Yard(tuple(nodes), judge.NOW_UNIX_S, topology="triangle" if base == "fe-triangle" else None)


def boxes(answers: dict[str, dict[str, Any] | str], seen: Yard) -> dict[str, Box]:
    return {node.name: Box(node.name, answers) for node in seen.nodes}


def test_every_link_end_is_pinged_and_a_recorded_link_is_not() -> None:
    seen = yard()
    wanted = targets(seen)
    assert {name: len(pairs) for name, pairs in wanted.items()} == {"spark-1": 4, "spark-2": 4, "spark-3": 4}
    assert ("enp1s0f0np0", "192.168.2.2") in wanted["spark-2"]
    recorded = replace(seen, nodes=tuple(Node(n, h) for n, h in judge.healthy("fe-triangle").items()))
    assert targets(recorded) == {}
    peer = {"device": "enp1s0f0np0", "address": "192.168.2.2", "answers": False, "answers_jumbo": False}
    asked = boxes({"ping_peers": {"peers": [peer]}}, seen)
    after = asyncio.run(with_pings(asked, seen))
    assert {(f.check, f.node) for f in headlines(examine(after))} == {
        ("cx7.peer", f"spark-{n}") for n in (1, 2, 3)
    }
    silent = asyncio.run(with_pings(boxes({"ping_peers": "no ping"}, seen), seen))
    assert [node.facts.peers for node in silent.nodes] == [None, None, None]


def test_each_twin_is_measured_alone_in_both_directions_and_then_both_together() -> None:
    seen = yard("dell-pair")
    assert len(streams(seen)) == 4
    asked = boxes({"probe:rdma": {"gbps": 94.0}, "probe:listen": {"gbps": None}}, seen)
    said: list[tuple[str, dict[str, Any]]] = []
    failures = asyncio.run(probe_all(asked, seen, lambda node, data: said.append((node, data)), lead_s=0.01))
    assert failures == ()
    for name, box in asked.items():
        other = "spark-2" if name == "spark-1" else "spark-1"
        kept = next(args["rdma"] for what, args in box.asked if what == "keep_probes" and "rdma" in args)
        assert [(row["netdev"], row["peer"], row["gbps"]) for row in kept] == [
            ("enp1s0f0np0", other, 94.0),
            ("enP2p1s0f0np0", other, 94.0),
            ("both", other, 188.0),
        ]
        assert [args["probe"] for what, args in box.asked if what == "probe"][:3] == ["burn", "gemv", "nvme"]
    assert any(data.get("netdev") == "both" for _, data in said)


def test_progress_is_said_as_a_share_and_results_by_name() -> None:
    assert probe_words({"probe": "nvme", "done": 268435456, "total": 1073741824}) == "25 %"
    assert (
        probe_words({"probe": "rdma", "netdev": "both", "gbps": 188.0, "peer": None})
        == "netdev both, gbps 188.0"
    )


def test_a_missing_tool_is_a_failure_of_that_probe_only() -> None:
    seen = yard("dell-pair")
    hint = "perftest is not installed (apt install perftest)"
    asked = boxes({"probe:rdma": hint, "probe:listen": hint}, seen)
    failures = asyncio.run(probe_all(asked, seen, lambda *_: None, lead_s=0.01))
    assert {failure.message for failure in failures} == {hint}
    assert all(any(args.get("probe") == "nvme" for _, args in box.asked) for box in asked.values())


def test_results_of_a_burn_are_judged_and_old_ones_are_not() -> None:
    for age_s, expected in ((600.0, {("gpu.latch", "spark-2")}), (90_000.0, set())):
        samples = [{"at_s": float(at), **LATCHED} for at in range(2, 10)]
        burn = {"unix_s": judge.NOW_UNIX_S - age_s, "seconds": 12, "samples": samples}
        case = {"base": "fe-triangle", "change": {}, "facts": {"spark-2": {"probes": {"burn": burn}}}}
        findings = judge.judge(judge.built(case), topology="triangle")
        assert {(f.check, f.node) for f in headlines(findings)} == expected


def wanted() -> tuple[Remedy, ...]:
    """The repairs of a triangle in which one end has MTU 1500."""
    data = json.loads(Path("tests/cases/doctor/mutations.json").read_text())["cx7.mtu"]
    nodes = tuple(Node(name, hardware) for name, hardware in judge.built(data).items())
    seen = Yard(nodes, judge.NOW_UNIX_S, topology="triangle")
    return remedies(examine(seen), seen)


def mended(answers: dict[str, dict[str, Any] | str], agree: bool = True) -> tuple[tuple[Done, ...], Box]:
    box = Box("spark-2", answers)
    shown: list[Shown] = []

    def ask(item: Shown) -> bool:
        shown.append(item)
        return agree

    return asyncio.run(fix({"spark-2": box}, wanted(), ask, sudo=False)), box


def test_the_lower_end_of_a_link_is_repaired() -> None:
    found = wanted()
    assert [(item.node, item.kind, item.args) for item in found] == [
        ("spark-2", "mtu", {"device": "enp1s0f0np0", "mtu": 9000})
    ]
    assert "netplan" in found[0].persist


def test_a_repair_is_shown_agreed_to_done_and_confirmed() -> None:
    answers: dict[str, dict[str, Any] | str] = {
        "repair": {"commands": ["ip link set dev enp1s0f0np0 mtu 9000"], "undo": "…", "token": "ab" * 8},
        "confirm_repair": {"kept": True},
    }
    done, box = mended(answers)
    assert [item.outcome for item in done] == ["done"]
    assert "netplan" in done[0].detail
    assert [what for what, _ in box.asked] == ["repair", "repair", "confirm_repair"]
    assert [args.get("show") for _, args in box.asked[:2]] == [True, None]
    declined, box = mended(answers, agree=False)
    assert [item.outcome for item in declined] == ["declined"]
    assert [what for what, _ in box.asked] == ["repair"]


def test_a_repair_that_cannot_be_confirmed_or_is_refused_is_said() -> None:
    shown = {"commands": ["ip link …"], "undo": "…", "token": "ab" * 8}
    lost, _ = mended({"repair": shown, "confirm_repair": "the connection broke"})
    assert [item.outcome for item in lost] == ["reverted"]
    assert "takes this back within 30 s" in lost[0].detail
    refused, _ = mended({"repair": "enp1s0f0np0 carries the SSH connection: it is never touched"})
    assert [item.outcome for item in refused] == ["refused"]
    assert "never touched" in refused[0].detail
