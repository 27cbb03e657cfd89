"""Ranks that would not be started from the same are refused, by what differs and where."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent import sources
from node_agent.home import Home
from orchestrator.model.profile import Profile
from orchestrator.plan.sources import ITEMS, Sources, compare, gap, named_files
from tests.clusters import lab_cluster, lab_profile
from tests.sim import INDEX, make_goal

TOKENS = "/etc/sparkyard/tokens.json"


def profile() -> Profile:
    """The lab's, with slices and a table that it names by path."""
    data = lab_profile().model_dump(mode="json", by_alias=True)
    data["settings"] += [
        {"plugin": "slices", "value": True, "why": "test"},
        {"flag": "--speculative-token-map", "value": TOKENS, "why": "test"},
    ]
    return Profile.model_validate(data)


GOAL = make_goal(profile(), lab_cluster().model_copy(update={"topology": "switch"}))
TP = 3


def tables(rank: int) -> dict[str, Any]:
    layers = [{"layer": 1, "table_rows": 90, "rows": 30, "ranges": [[30 * rank, 30 * rank + 30]]}]
    own = {"store_id": GOAL.store(rank, INDEX), "ownership": GOAL.profile.engram.ownership, "layers": layers}
    return {"revision": GOAL.profile.model.revision, "index_sha256": INDEX, "tp": TP, "rank": rank} | own


def slices(rank: int) -> dict[str, Any]:
    padding = GOAL.profile.parallel.padding
    split = {"name": "w.#", "axis": 0, "shape": [12, 8], "filled": [4 * rank, 4 * rank + 4], "count": 7}
    pieces = [[3 * rank, 3 if rank < 2 else 2, 4 * rank]]
    whole = {"name": "norm.#", "axis": None, "shape": [8], "pieces": [], "filled": [], "count": 2}
    own = {"id": GOAL.slices(rank, INDEX), "padding": padding.model_dump() if padding else {}}
    own["kinds"] = [{**split, "pieces": pieces}, whole]
    return {"revision": GOAL.profile.model.revision, "index_sha256": INDEX, "tp": TP, "rank": rank} | own


def answers() -> dict[int, dict[str, Any]]:
    def one(rank: int) -> dict[str, Any]:
        base = {"plugin": "a" * 64, "nccl": "b" * 64, "files": {TOKENS: "c" * 64}}
        base["autotune"] = {"0.7/sm121/k": "d" * 64}
        return {**base, "tables": tables(rank), "slices": slices(rank)}

    return {rank: one(rank) for rank in range(TP)}


def judged(seen: dict[int, dict[str, Any]], *ignore: str) -> list[str]:
    models = {rank: Sources.model_validate(one) for rank, one in seen.items()}
    return [f"{failure.node}: {failure.message}" for failure in compare(GOAL, INDEX, models, ignore)]


def test_equal_sources_pass() -> None:
    assert judged(answers()) == []
    assert named_files(GOAL) == (TOKENS,)


@pytest.mark.parametrize(
    ("path", "value", "item", "words"),
    [
        (("plugin",), "e" * 64, "digests", "plug-in's package is eeeeeeeeeeee here, aaaaaaaaaaaa on spark-1"),
        (("nccl",), None, "digests", "NCCL library is not there here"),
        (("files", TOKENS), None, "digests", f"{TOKENS} is not there here"),
        (("autotune",), {}, "autotune", "tuning results 0.7/sm121/k are not there here"),
        (("tables",), None, "stores", "no packed tables"),
        (("tables", "revision"), "other", "stores", "packed tables have revision other"),
        (("tables", "ownership"), "rows", "stores", "packed tables have ownership rows"),
        (("tables", "rank"), 0, "stores", "packed tables have rank 0, expected 1"),
        (("tables", "layers", 0, "ranges"), [[29, 60]], "stores", "29 … 30 belongs to rank 0 and to rank 1"),
        (("tables", "layers", 0, "ranges"), [[31, 60]], "stores", "30 … 31 belongs to no rank"),
        (("tables", "layers", 0, "table_rows"), 91, "stores", "do not agree on the table's size"),
        (("tables", "layers"), [], "stores", "30 … 60 belongs to no rank"),
        (("slices", "index_sha256"), "9" * 64, "stores", "weight slices have index_sha256 999"),
        (
            ("slices", "kinds", 0, "count"),
            6,
            "stores",
            "weight slices, w.#: the ranks have 7 (rank 0), 6 (rank 1)",
        ),
        (("slices", "kinds", 0, "filled"), [4, 7], "stores", "7 … 8 belongs to no rank"),
        (("slices", "kinds", 0, "pieces"), [[2, 4, 4]], "stores", "2 … 3 belongs to rank 0 and to rank 1"),
        (("slices", "kinds", 0, "name"), "v.#", "stores", "rank 1 has none"),
    ],
)
def test_what_differs_is_named_and_can_be_accepted(
    path: tuple[Any, ...], value: Any, item: str, words: str
) -> None:
    seen = answers()
    place: Any = seen[1]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    found = judged(seen)
    assert any(words in text for text in found), found
    assert judged(seen, item) == []
    assert judged(seen, *(other for other in ITEMS if other != item)) == found


def test_a_named_nccl_library_is_told_once_on_each_node_that_has_another() -> None:
    library, right = "/opt/nccl/libnccl.so.2", "f" * 64
    named = {"library": library, "sha256": right, "source": "test"}
    data = profile().model_dump(mode="json", by_alias=True) | {"nccl": named}
    goal = make_goal(Profile.model_validate(data), GOAL.cluster)
    seen = answers()
    for rank, digest in enumerate((right, "e" * 64, None)):
        seen[rank]["files"][library] = digest
        for what in ("tables", "slices"):
            seen[rank][what] = None
    models = {rank: Sources.model_validate(one) for rank, one in seen.items()}
    found = [f"{one.node}: {one.message}" for one in compare(goal, INDEX, models, ("stores",))]
    assert found == [
        f"spark-2: rank 1: {library} is eeeeeeeeeeee, the profile names ffffffffffff",
        f"spark-3: rank 2: {library} is not there, the profile names ffffffffffff",
    ]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.data())
def test_ranges_that_partition_pass_and_any_change_of_one_is_told(
    lengths: list[int], data: st.DataObject
) -> None:
    edges = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
    owned = [(first, end, place % 3) for place, (first, end) in enumerate(pairwise(edges))]
    shuffled = data.draw(st.permutations(owned))
    assert gap(shuffled, edges[-1]) == ""
    place = data.draw(st.integers(0, len(owned) - 1))
    first, end, rank = shuffled[place]
    moved = data.draw(st.sampled_from([(first, end + 1, rank), (first + 1, end + 1, rank)]))
    assert gap([*shuffled[:place], moved, *shuffled[place + 1 :]], edges[-1]) != ""
    assert gap([*shuffled[:place], *shuffled[place + 1 :]], edges[-1]) != ""


def test_the_agent_tells_its_sources(tmp_path: Path) -> None:
    home = Home(tmp_path, "spark-1", "0" * 64)
    package = home.engines / ("a" * 64)
    (package / "sparkyard_engine" / "__pycache__").mkdir(parents=True)
    (package / "sparkyard_engine" / "x.py").write_text("1")
    library = tmp_path / "env" / "lib" / "python3.11" / "site-packages" / sources.NCCL
    library.parent.mkdir(parents=True)
    library.write_bytes(b"nccl")
    asked = {
        "rank": 1,
        "engine": "a" * 64,
        "python": str(tmp_path / "env" / "bin" / "python"),
        "files": [str(library)],
    }
    first = sources.read(home, asked)
    assert Sources.model_validate(first).nccl == first["files"][str(library)]
    assert first["tables"] is None
    (package / "sparkyard_engine" / "__pycache__" / "x.pyc").write_text("compiled")
    assert sources.read(home, asked)["plugin"] == first["plugin"]
    (package / "sparkyard_engine" / "x.py").write_text("2")
    assert sources.read(home, asked)["plugin"] != first["plugin"]
    contained = sources.read(home, asked | {"python": "", "engine": ""})
    assert (contained["nccl"], contained["plugin"]) == (None, None), "both are in the image"


def test_tuning_results_are_those_of_the_rank_whatever_their_order(tmp_path: Path) -> None:
    home = Home(tmp_path, "spark-1", "0" * 64)
    folder = tmp_path / "cache" / ".cache" / "sglang" / sources.AUTOTUNE / "0.7" / "sm121" / "key"
    folder.mkdir(parents=True)
    (folder / "rank_tp0_pp0_dp0.json").write_text('{"a": 1, "b": 2}')
    (folder / "rank_tp1_pp0_dp0.json").write_text('{"b": 2, "a": 1}')
    found = [sources.read(home, {"rank": rank, "engine": ""})["autotune"] for rank in (0, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert list(found[0]) == ["0.7/sm121/key"]


def test_seventy_thousand_tensors_are_a_few_kinds() -> None:
    tensors = [
        {
            "name": f"layers.{layer}.experts.{expert}.w1",
            "axis": 0,
            "shape": [9, 4],
            "pieces": [[0, 3, 0]],
            "filled": [0, 3],
        }
        for layer in range(20)
        for expert in range(50)
    ]
    (kind,) = sources.kinds([*tensors])
    assert (kind["name"], kind["count"]) == ("layers.#.experts.#.w#", 1000)
    assert len(json.dumps(kind)) < 200
