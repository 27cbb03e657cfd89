"""Rank specs: exact words, exact quoting, every setting on the ranks it is meant for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Cluster
from orchestrator.model.profile import Profile
from orchestrator.plan.fabric import Fabric, Rail
from orchestrator.plan.launch import rank_specs
from sparkyard_engine import rankspec

STORES = {0: "a" * 64, 1: "b" * 64, 2: "c" * 64}


def profile(**changes: Any) -> Profile:
    value = {
        "schema": "sparkyard/profile/v1",
        "name": "lab",
        "evidence": "none",
        "model": {"name": "lab/model", "served_name": "lab", "revision": "r1"},
        "engine": {"name": "sglang", "version": "0.5.23", "runtime": "process"},
        "parallel": {"tp": 3, "padding": {"num_attention_heads": 12, "o_groups": 6}},
        "memory": {"floor_below_start_bytes": 9},
        "ports": {"api": 8000, "gate": 8100, "rendezvous": 8200},
        "deadlines": dict.fromkeys(
            ("join_s", "ready_s", "drain_s", "memory_s", "pack_s", "canary_s", "smoke_s"), 60.0
        ),
    }
    return Profile.model_validate(value | changes)


def cluster(**changes: Any) -> Cluster:
    nodes = [
        {"name": f"n{index}", "root": f"/r{index}", "port_offset": index, "engine_python": "/e/bin/python"}
        for index in range(3)
    ]
    value = {"schema": "sparkyard/cluster/v1", "topology": "single-host", "head": "n1", "nodes": nodes}
    return Cluster.model_validate(value | changes)


def test_a_single_host_gang() -> None:
    specs = rank_specs(profile(), cluster(), generation=4, stores=STORES)
    assert [spec.node for spec in specs] == ["n1", "n0", "n2"]
    assert specs[0].body["argv"] == [
        *("/e/bin/python", "-m", "sglang.launch_server", "--model-path", "{checkpoint}"),
        *("--served-model-name", "lab", "--tp", "3", "--nnodes", "3", "--node-rank", "0"),
        *("--dist-init-addr", "127.0.0.1:8201", "--gated-launch-port", "8101"),
        *("--host", "127.0.0.1", "--port", "8001"),
        *("--json-model-override-args", '{"num_attention_heads":12,"o_groups":6}'),
    ]
    assert specs[0].body["env"] == {"PYTHONPATH": "{engine}", "GLOO_SOCKET_IFNAME": "lo"}
    assert [spec.body["gate_port"] for spec in specs] == [8101, None, None]
    assert specs[2].body["plugin"]["engram"]["store"] == "{packs}/" + "c" * 64
    assert len({spec.identity for spec in specs}) == 3


def test_the_engine_side_accepts_every_spec() -> None:
    for spec in rank_specs(profile(), cluster(), generation=4, stores=STORES):
        placed = json.loads(json.dumps(spec.body).replace("{directory}", "/d"))
        assert rankspec.parse(placed).rank == spec.rank
        assert rankspec.identity_of(spec.body) == spec.identity


SCALARS = st.one_of(st.text(max_size=20), st.integers(), st.booleans())


@given(value=SCALARS, ranks=st.sampled_from(["all", "head", "workers"]))
@settings(max_examples=50, derandomize=True)
def test_any_flag_and_variable_reaches_the_ranks_it_is_meant_for_as_one_word(
    value: str | int | bool, ranks: str
) -> None:
    wanted = [
        {"flag": "--some-flag", "value": value, "why": "w", "ranks": ranks},
        {"env": "SOME_NAME", "value": value, "why": "w", "ranks": ranks},
    ]
    specs = rank_specs(profile(settings=wanted), cluster(), generation=1, stores=STORES)
    word = str(int(value)) if isinstance(value, bool) else str(value)
    for spec in specs:
        meant = {"all": True, "head": spec.rank == 0, "workers": spec.rank > 0}[ranks]
        assert (spec.body["argv"][-2:] == ["--some-flag", word]) == meant
        assert (spec.body["env"].get("SOME_NAME") == word) == meant


def test_one_rank_needs_no_rendezvous() -> None:
    alone = profile(parallel={"tp": 1}, engram={"mode": "memory"})
    (spec,) = rank_specs(alone, cluster(), generation=1, stores={})
    assert "--dist-init-addr" not in spec.body["argv"]
    assert spec.body["plugin"]["padding"] == {}


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs 4 nodes, found 3"):
        rank_specs(profile(parallel={"tp": 4}), cluster(), generation=1, stores=STORES)
    with pytest.raises(ConfigError, match=r"rank 2: engram\.mode is disk"):
        rank_specs(profile(), cluster(), generation=1, stores={0: "a", 1: "b"})
    with pytest.raises(ConfigError, match="links of n1, n0, n2"):
        rank_specs(profile(), cluster(topology="switch"), generation=1, stores=STORES)


def test_rails_with_one_gid_index_and_with_several() -> None:
    same = Fabric("enP7s7", (Rail("rocep1s0f0", "enp1s0f0np0", "10.0.1.1/24", 3),) * 2)
    mixed = Fabric("eth0", (*same.rails, Rail("rocep1s0f1", "enp1s0f1np1", "10.0.2.1/24", 5)))
    assert same.environment()["NCCL_IB_GID_INDEX"] == "3"
    assert "NCCL_IB_GID_INDEX" not in mixed.environment()
    assert mixed.environment()["NCCL_IB_ROCE_VERSION_NUM"] == "2"
    other = Fabric("x", (Rail("a", "b", "10.0.2.7/24", 4),))
    assert mixed.address_towards(other) == "10.0.2.1"
    assert same.address_towards(other) is None
