"""Complete rank specs and `docker run` lines against golden files; run as a module, it rewrites them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from node_agent.actions.containers import account_arguments, run_arguments
from node_agent.actions.ranks import check_library
from node_agent.wire import Refused
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.cluster import Cluster
from orchestrator.model.goal import Goal, Package
from orchestrator.model.profile import Nccl, Profile
from orchestrator.plan.fabric import Fabric, Rail, fabric_of
from orchestrator.plan.launch import RankSpec, rank_specs, rendezvous_address
from orchestrator.plan.serve import refused_ring
from sparkyard_engine import rankspec
from tests.nodes import gb10
from tests.nodes.judge import facts_of

CASES = Path(__file__).parents[1] / "cases"
NAMES = ("triangle-tp3", "switch-tp4", "ring-tp4", "unlike-ports-tp3")
WIRING = {
    "triangle-tp3": "triangle",
    "switch-tp4": "switch",
    "ring-tp4": "ring",
    "unlike-ports-tp3": "triangle",
}
RING_NCCL = Nccl(
    library="/opt/nccl-ring/libnccl.so.2",
    sha256="ab" * 32,
    source="a build that routes around a ring (made up)",
)
ROOT = "/var/lib/sparkyard"
IMAGE = "sparkyard/engine:555555555555"


def recorded(recordings: str, cluster: Cluster) -> dict[str, Fabric]:
    """Links as the readers find them on recorded nodes."""
    found = {}
    for node, recording in zip(cluster.nodes, gb10.cluster(recordings).values(), strict=True):
        fabric = fabric_of(facts_of(recording), node.address)
        assert fabric is not None
        found[node.name] = fabric
    return found


def unlike() -> dict[str, Fabric]:
    """Three nodes that name their ports differently and have GID 3, 5 and 4; the last one's rails differ."""
    return {
        "spark-1": Fabric("enP7s7", (Rail("rocep1s0f0", "enp1s0f0np0", "10.0.1.1/24", 3),)),
        "spark-2": Fabric("eth0", (Rail("mlx5_0", "fabric0", "10.0.1.2/24", 5),)),
        "spark-3": Fabric(
            "enp9s0",
            (
                Rail("roceP2p1s0f1", "enP2p1s0f1np1", "10.0.2.3/24", 4),
                Rail("rocep1s0f1", "enp1s0f1np1", "10.0.1.3/24", 3),
            ),
        ),
    }


def made(name: str) -> list[dict[str, Any]]:
    tp = int(name[-1])
    profile = load_profile(f"deepseek-v4.1-flash-tp{tp}")
    if name == "ring-tp4":
        profile = profile.model_copy(update={"nccl": RING_NCCL})
    cluster = load_cluster(CASES / "clusters" / f"{WIRING[name]}.yaml")
    fabrics = {
        "triangle-tp3": lambda: recorded("fe-triangle", cluster),
        "switch-tp4": lambda: recorded("mixed-four", cluster),
        "ring-tp4": lambda: recorded("fe-ring", cluster),
        "unlike-ports-tp3": unlike,
    }[name]()
    stores = {rank: f"{rank:x}" * 64 for rank in range(tp)}
    slices = {rank: f"{rank + 8:x}" * 64 for rank in range(tp)}
    specs = rank_specs(profile, cluster, generation=7, stores=stores, slices=slices, fabrics=fabrics)
    return [
        {
            "node": spec.node,
            "identity": spec.identity,
            "spec": dict(spec.body),
            "docker": docker_arguments(spec, len(fabrics[spec.node].rails)),
        }
        for spec in specs
    ]


def docker_arguments(spec: RankSpec, ports: int) -> list[str]:
    """Between `docker run` and the command, as the agent of a node with so many RDMA devices makes it."""
    folder = f"{ROOT}/ranks/{spec.body['deployment']}.g{spec.body['generation']}.r{spec.rank}"
    writable = {folder: True, f"{ROOT}/cache": True}
    read_only = dict.fromkeys((f"{ROOT}/packs", f"{ROOT}/slices", "/models/DeepSeek-V4.1-Flash"), False)
    if "nccl" in spec.body:
        read_only[spec.body["nccl"]["library"]] = False
    return run_arguments(
        {"sparkyard.rank": str(spec.rank), "sparkyard.spec": spec.identity, "sparkyard.node": spec.node},
        IMAGE,
        {**writable, **read_only},
        {"SPARKYARD_RANK_SPEC": f"{folder}/rank.json"},
        gpu=True,
        devices=(
            *tuple(f"/dev/infiniband/uverbs{number}" for number in range(ports)),
            "/dev/infiniband/rdma_cm",
        ),
        seccomp=f"{ROOT}/seccomp.json",
    )


def golden(name: str) -> Path:
    return CASES / "launch" / f"{name}.json"


@pytest.mark.parametrize("name", NAMES)
def test_specs_and_docker_lines_are_those_of_the_golden_file(name: str) -> None:
    assert made(name) == json.loads(golden(name).read_text("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_what_every_line_must_have_and_must_not(name: str) -> None:
    for entry in made(name):
        line = " ".join(entry["docker"])
        assert "--privileged" not in line
        assert "seccomp=" in line
        assert "no-new-privileges" in line
        assert "--restart no" in line
        assert int(entry["spec"]["env"]["NCCL_LL128_BUFFSIZE"]) % 120 == 0
        placed = json.dumps(entry["spec"]).replace("{directory}", "/d")
        assert rankspec.parse(json.loads(placed)).rank == entry["spec"]["rank"]


def test_an_ordinary_account_gets_no_capability_of_dockers() -> None:
    assert account_arguments(1000, 100) == ["--user", "1000:100", "--cap-drop", "ALL"]
    assert account_arguments(0, 0) == ["--user", "0:0"]


def test_each_node_has_its_own_devices_and_gid_index() -> None:
    envs = [entry["spec"]["env"] for entry in made("unlike-ports-tp3")]
    assert [env["NCCL_IB_HCA"] for env in envs] == ["=rocep1s0f0", "=mlx5_0", "=roceP2p1s0f1,rocep1s0f1"]
    assert [env.get("NCCL_IB_GID_INDEX") for env in envs] == ["3", "5", None]
    triangle = [entry["spec"]["argv"] for entry in made("triangle-tp3")]
    addresses = [words[words.index("--dist-init-addr") + 1] for words in triangle]
    assert len(set(addresses[1:])) == 2, "in a triangle each worker reaches the head by another address"


def test_the_far_side_of_a_ring_meets_the_head_on_the_management_network() -> None:
    ring = load_cluster(CASES / "clusters" / "ring.yaml")
    fast = [node.model_copy(update={"fabric_address": "192.168.0.1"}) for node in ring.nodes]
    ring = ring.model_copy(update={"nodes": tuple(fast)})
    fabrics = recorded("fe-ring", ring)
    head = ring.nodes[0]
    met = [rendezvous_address(ring, node, head, fabrics) for node in ring.nodes]
    assert met == ["192.168.0.1", "192.168.0.1", head.address, "192.168.6.2"]


def test_a_ring_of_four_is_refused_unless_the_profile_names_a_library() -> None:
    profile = load_profile("deepseek-v4.1-flash-tp4")
    ring = load_cluster(CASES / "clusters" / "ring.yaml")
    package = Package("0" * 64, 1)

    def said(profile: Profile, cluster: Cluster) -> list[str]:
        match refused_ring(Goal(profile, cluster, package)):
            case None:
                return []
            case blocked:
                return [f"{each.node}: {each.message}; {each.remedy}" for each in blocked.failures]

    (refusal,) = said(profile, ring)
    assert refusal.startswith("spark-1: a ring of 4 nodes at tp 4, and the profile names no NCCL library")
    assert "nccl: {library, sha256, source}" in refusal
    assert said(profile.model_copy(update={"nccl": RING_NCCL}), ring) == []
    assert said(profile, load_cluster(CASES / "clusters" / "switch.yaml")) == []


def test_a_rank_with_another_library_than_the_profile_names_is_not_started(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    wanted = {"nccl": {"library": str(library), "sha256": hashlib.sha256(b"right").hexdigest()}}
    with pytest.raises(Refused, match=r"No such file.*nccl\.library"):
        check_library(wanted)
    library.write_bytes(b"wrong")
    with pytest.raises(Refused, match="put the right file there, or correct the profile"):
        check_library(wanted)
    library.write_bytes(b"right")
    check_library(wanted)
    check_library({})


if __name__ == "__main__":
    for case in NAMES:
        golden(case).parent.mkdir(exist_ok=True)
        golden(case).write_text(json.dumps(made(case), indent=1, ensure_ascii=False) + "\n", "utf-8")
