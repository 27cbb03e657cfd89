"""How a gang serves, from lines of real boots: RDMA, all cards, graphs, speculation, the disk of the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.load import load_profile
from orchestrator.model.cluster import Cluster
from orchestrator.model.goal import Goal, Package
from orchestrator.plan.proven import Item, Paced, Shown, failures, judge
from tests.clusters import lab_cluster, lab_profile

IB = "spark-1:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enP7s7:10.0.0.1<0>"
HALF = "spark-1:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]; OOB enP7s7:192.168.1.11<0>"
NETWORK = "spark-1:1:1 [0] NCCL INFO Using network IB"
SOCKET = (
    "spark-2:1:1 [0] NCCL INFO Failed to open libibverbs.so[.1]",
    "spark-2:1:1 [0] NCCL INFO NET/Socket : Using [0]enP7s7:192.168.1.12<0>",
    "spark-2:1:1 [0] NCCL INFO Using network Socket",
)
CARDS = ("rocep1s0f0", "roceP2p1s0f0")
NVME = {"path": "/yard/packs/x", "filesystem": "ext4", "usb": False, "rotational": False}
GOOD = Shown(
    lines=(IB, NETWORK), gauges={"is_cuda_graph": 1.0, "spec_accept_length": 2.9}, store=NVME, hcas=CARDS
)


def goal(topology: str = "triangle") -> Goal:
    cluster = lab_cluster().model_copy(update={"topology": topology})
    profile = load_profile("deepseek-v4.1-flash-tp3") if topology != "single-host" else lab_profile()
    return Goal(profile, Cluster.model_validate(cluster.model_dump(by_alias=True)), Package("a" * 64, 1))


def bad(shown: Shown, name: str, topology: str = "triangle") -> bool:
    """Whether rank 1 that shows this, beside good ones, is refused for this item and for nothing else."""
    items = judge(goal(topology), {0: GOOD, 1: shown, 2: GOOD})
    wrong = {(item.name, item.rank) for item in items if item.severity == "error"}
    assert wrong <= {(name, 1)}
    return bool(wrong)


def test_a_good_boot_is_good() -> None:
    items = judge(goal(), dict.fromkeys(range(3), GOOD))
    assert {item.severity for item in items} == {"good"}
    assert {"network", "graphs", "store"} <= {item.name for item in items}
    assert failures(items) == ()


def test_sockets_are_refused_with_the_lines_that_show_them() -> None:
    shown = GOOD.model_copy(update={"lines": SOCKET})
    assert bad(shown, "network")
    (failure,) = failures(judge(goal(), {0: GOOD, 1: shown, 2: GOOD}))
    assert failure.node == "spark-2"
    assert "TCP sockets" in failure.message
    assert any("NET/Socket" in line for line in failure.evidence)


def test_one_card_missing() -> None:
    shown = GOOD.model_copy(update={"lines": (HALF, NETWORK)})
    assert bad(shown, "hcas")
    (failure,) = failures(judge(goal(), {0: GOOD, 1: shown, 2: GOOD}))
    assert "does not use roceP2p1s0f0" in failure.message


def test_eager() -> None:
    lines = (IB, NETWORK, "cuda graph is disabled")
    assert bad(GOOD.model_copy(update={"lines": lines, "gauges": {"is_cuda_graph": 0.0}}), "graphs")


@pytest.mark.parametrize(
    "change",
    [
        {"filesystem": "nfs4"},
        {"filesystem": "fuse.sshfs"},
        {"filesystem": "tmpfs"},
        {"usb": True},
        {"rotational": True},
    ],
)
def test_rows_anywhere_but_on_a_local_disk(change: dict[str, object]) -> None:
    shown = GOOD.model_copy(update={"store": {**NVME, **change}})
    assert bad(shown, "store")
    items = judge(goal("single-host"), dict.fromkeys(range(3), shown))
    assert {item.severity for item in items if item.name == "store"} == {"warning"}


def test_a_draft_that_never_helps() -> None:
    gauges = {"is_cuda_graph": 1.0, "spec_accept_length": 1.0}
    items = judge(goal(), {0: GOOD.model_copy(update={"gauges": gauges}), 1: GOOD, 2: GOOD})
    assert [item.name for item in items if item.severity == "error"] == ["speculation"]


def test_a_clamped_pool_is_a_warning() -> None:
    shown = GOOD.model_copy(update={"kv_tokens": 918_204, "kv_tokens_asked": 1_300_000})
    items = judge(goal(), {0: shown, 1: shown, 2: shown})
    assert {item.text for item in items if item.name == "kv_pool"} == {
        "KV pool of 918,204 tokens, asked for 1,300,000"
    }
    assert failures(items) == ()


def test_ignoring_demotes_and_never_hides() -> None:
    shown = GOOD.model_copy(update={"lines": SOCKET})
    items = judge(goal(), {0: GOOD, 1: shown, 2: GOOD}, ignore=("network",))
    assert failures(items) == ()
    assert [item.text for item in items if item.severity == "warning"] == ["NCCL uses TCP sockets, not RDMA"]


IDS = ((5, 6, 7), (5, 6, 7))
QUICK = Paced(first_token_s=0.3, step_s=0.06, steps=46, texts=("a b c", "a b c"), ids=IDS)


def answers(paced: Paced | str, head: Shown = GOOD) -> dict[str, list[Item]]:
    """Items of the timed generations on the lab, by name."""
    items = judge(goal("single-host"), {0: head, 1: GOOD, 2: GOOD}, paced)
    return {name: [item for item in items if item.name == name] for name in ("greedy", "pace")}


def test_two_equal_runs_inside_the_band() -> None:
    found = answers(QUICK)
    assert [item.severity for item in (*found["greedy"], *found["pace"])] == ["good"] * 3
    assert "3 tokens" in found["greedy"][0].text


def test_two_greedy_runs_that_differ_are_refused_from_the_token_on() -> None:
    (item,) = answers(QUICK.model_copy(update={"ids": ((5, 6, 7), (5, 8, 7))}))["greedy"]
    assert item.severity == "error"
    assert "differ from token 1 on" in item.text
    (item,) = answers(QUICK.model_copy(update={"ids": ((), ()), "texts": ("a b c", "a b d")}))["greedy"]
    assert item.severity == "error"
    assert "differ from character 4 on" in item.text


def test_slow_is_said_and_twice_as_slow_is_refused() -> None:
    band = goal("single-host").profile.band
    assert band is not None
    for figure, (low_s, high_s) in {"step_s": band.step_s, "first_token_s": band.first_token_s}.items():
        wanted = {0.5 * low_s: "warning", high_s: "good", 1.5 * high_s: "warning", 2.5 * high_s: "error"}
        for seconds, severity in wanted.items():
            found = answers(QUICK.model_copy(update={figure: seconds}))["pace"]
            assert sorted(item.severity for item in found) == sorted(["good", severity]), (figure, seconds)


def test_the_pace_is_not_judged_while_others_are_served_or_without_a_band() -> None:
    slow = QUICK.model_copy(update={"step_s": 99.0})
    busy = GOOD.model_copy(update={"gauges": {**GOOD.gauges, "num_running_reqs": 3.0}})
    assert {item.severity for item in answers(slow, busy)["pace"]} == {"good"}
    whole = goal("single-host")
    bare = replace(whole, profile=whole.profile.model_copy(update={"band": None}))
    items = judge(bare, dict.fromkeys(range(3), GOOD), slow)
    assert {item.severity for item in items if item.name == "pace"} == {"good"}
    assert any("no band" in item.text for item in items)


def test_no_timed_answer_is_a_warning() -> None:
    assert [item.severity for item in answers("timed out")["greedy"]] == ["warning"]


def test_nothing_of_the_network_applies_on_one_host() -> None:
    items = judge(goal("single-host"), dict.fromkeys(range(3), Shown(lines=SOCKET, store=NVME)))
    assert {item.name for item in items} == {"store"}
