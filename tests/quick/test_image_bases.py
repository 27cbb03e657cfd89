"""Base images: recorded when first seen, refused when they drift; and the key of what is compiled at run time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node_agent.image import bases, kernels
from node_agent.image.identity import Image
from node_agent.wire import Refused
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.facts import DockerFacts, ImageFacts, KernelCache, NodeFacts
from orchestrator.model.goal import Goal, Package
from orchestrator.plan import image, warm
from tests.sim import fresh

ENGINE = Path(__file__).parents[2] / "engine"
CLUSTERS = Path(__file__).parents[1] / "cases" / "clusters"
TAG = "registry:5000/nvidia/cuda:13.0.2-devel"
OLD, NEW = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def pulled(digest: str) -> Image:
    names = (f"registry:5000/nvidia/cuda@{digest}", f"registry:5000/other@{NEW}")
    return Image("sha256:id", (TAG,), names, "", "linux/arm64", (), None, 0)


def test_the_first_pull_is_recorded_and_a_moved_tag_is_refused(tmp_path: Path) -> None:
    assert bases.hold(tmp_path, TAG, pulled(OLD)) == OLD
    lock = json.loads((tmp_path / "images.lock").read_text())
    assert lock["images"][TAG]["digest"] == OLD
    assert bases.hold(tmp_path, TAG, pulled(OLD)) == OLD
    with pytest.raises(Refused, match=f"has drifted: now {NEW}, .*images.lock has {OLD}"):
        bases.hold(tmp_path, TAG, pulled(NEW))
    assert json.loads((tmp_path / "images.lock").read_text()) == lock


def test_a_base_by_digest_needs_no_entry_and_must_be_that_one(tmp_path: Path) -> None:
    name = f"registry:5000/nvidia/cuda@{OLD}"
    assert bases.hold(tmp_path, name, pulled(OLD)) == OLD
    assert not (tmp_path / "images.lock").exists()
    with pytest.raises(Refused, match="the engine has"):
        bases.hold(tmp_path, name, pulled(NEW))


def test_an_image_that_was_made_here_is_known_by_its_id(tmp_path: Path) -> None:
    local = Image("sha256:id", ("base:1",), (), "", "linux/arm64", (), None, 0)
    assert bases.hold(tmp_path, "base:1", local) == "sha256:id"
    assert bases.repository("base:1") == "base"
    assert bases.repository(TAG) == "registry:5000/nvidia/cuda"
    assert (
        bases.digest_of("cuda:1", Image("i", (), (f"docker.io/library/cuda@{OLD}",), "", "", (), None, 0))
        == OLD
    )


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "sparkyard/images-lock/v1", "images": {"a": 3}}']
)
def test_a_damaged_lock_is_not_forgotten(tmp_path: Path, text: str) -> None:
    (tmp_path / "images.lock").write_text(text)
    with pytest.raises(Refused, match="not a lock of images"):
        bases.hold(tmp_path, TAG, pulled(OLD))


def test_the_key_follows_the_recipe_and_the_base(tmp_path: Path) -> None:
    key = kernels.key(ENGINE, OLD)
    assert key == kernels.key(ENGINE, OLD) != kernels.key(ENGINE, NEW)
    for name in kernels.RECIPE:
        assert (ENGINE / name).is_file()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ENGINE / name).read_bytes())
    assert kernels.key(tmp_path, OLD) == key
    (tmp_path / kernels.RECIPE[1]).write_text("other wheels")
    assert kernels.key(tmp_path, OLD) != key


def tuned(root: Path, key: str, rank: int, tactics: str) -> None:
    place = kernels.folder(root, key) / kernels.SGLANG / kernels.TUNED / "0.7.2" / "sm121" / "abc"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"rank_tp{rank}_pp0_dp0.json").write_text(tactics)


def test_tuning_of_two_ranks_is_equal_whatever_the_file_is_called(tmp_path: Path) -> None:
    for rank, tactics in enumerate(("{}", "{}", '{"a": 1}')):
        tuned(tmp_path / str(rank), "k", rank, tactics)
    (tmp_path / "0" / "cache" / "k" / kernels.SGLANG / "triton").write_bytes(bytes(100))
    first, second, third = (kernels.facts(tmp_path / str(rank))[0] for rank in range(3))
    assert (first["files"], first["bytes"]) == (2, 102)
    assert first["tuned_sha256"] == second["tuned_sha256"] != third["tuned_sha256"]
    (tmp_path / "cache" / "cold").mkdir(parents=True)
    assert kernels.facts(tmp_path) == [{"key": "cold", "files": 0, "bytes": 0, "tuned_sha256": None}]


def test_serve_announces_a_cold_cache_and_tuning_that_differs() -> None:
    goal = Goal(
        load_profile("deepseek-v4.1-flash-tp3"),
        load_cluster(CLUSTERS / "triangle.yaml"),
        Package("a" * 64, 1000),
    )
    made = ImageFacts(content=image.content(goal), platform="linux/arm64", rootfs="0" * 64, kernels="k")

    def facts(*digests: str | None) -> dict[str, NodeFacts]:
        found = {}
        for node, digest in zip(goal.ranked, digests, strict=True):
            caches = (
                KernelCache(key="other", tuned_sha256="9" * 64),
                KernelCache(key="k", tuned_sha256=digest),
            )
            docker = DockerFacts(images=(made,), caches=caches)
            found[node.name] = fresh(node.name, goal).model_copy(update={"docker": docker})
        return found

    assert warm.note(goal, facts("a" * 64, "a" * 64, "a" * 64)) == ""
    assert warm.note(goal, facts("a" * 64, None, "a" * 64)).startswith("kernel cache cold on spark-2: ")
    assert "36 minutes" in warm.note(goal, facts(None, None, None))
    assert "differ between the nodes" in warm.note(goal, facts("a" * 64, "b" * 64, "a" * 64))
