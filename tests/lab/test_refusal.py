"""What the plug-in refuses, `serve` repeats: a missing pad, a symbol that this SGLang does not have. Real SGLang."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator import verbs
from orchestrator.errors import Exit
from orchestrator.lab import cycle, nodes
from orchestrator.lab.place import Place
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.profile import PluginSetting, Profile

RENAMED = """import sys
if any("launch_server" in word for word in sys.orig_argv):
    from sglang.srt.layers.engram import EngramEmbedding as stock
    stock.fresh_rows = stock.new_rows
    del stock.new_rows
"""
"""As a later SGLang could: the method is there under another name."""


def unsliced() -> Profile:
    """The lab's profile, booted from the checkpoint: slices are not what is tried here."""
    profile = load_profile("lab")
    kept = tuple(s for s in profile.settings if not (isinstance(s, PluginSetting) and s.plugin == "slices"))
    return profile.model_copy(update={"settings": kept})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("state") / "lab")
    try:
        asyncio.run(cycle.set_up(made, load_profile("lab"), lambda _: None, None))
        yield made
    finally:
        nodes.down(made)


def start(place: Place, profile: Profile, cluster: Path | None = None) -> str:
    """`up`, which must fail; everything that it says."""
    session = verbs.Session(profile, load_cluster(cluster or place.cluster_file), lambda _: None)
    done = asyncio.run(verbs.converging(session, "up"))
    assert done.exit_code == Exit.FAILED
    return "\n".join(
        f"{found['node']}: {found['message']} {' '.join(found.get('evidence') or [])}"
        for found in done.data["failures"]
    )


@pytest.mark.timeout(400)
def test_ranks_without_padding_do_not_serve_and_serve_says_why(place: Place) -> None:
    profile = unsliced()
    bare = profile.model_copy(update={"parallel": profile.parallel.model_copy(update={"padding": None})})
    text = start(place, bare)
    assert "4 groups do not divide by 3 ranks" in text


@pytest.mark.timeout(400)
def test_a_symbol_that_was_renamed_is_named_by_serve(place: Place, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(RENAMED)
    cluster = yaml.safe_load(place.cluster_file.read_text())
    for node in cluster["nodes"]:
        wrapper = tmp_path / f"python-{node['name']}"
        wrapper.write_text(
            f'#!/bin/sh\nPYTHONPATH={tmp_path}:$PYTHONPATH exec {node["engine_python"]} "$@"\n'
        )
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        node["engine_python"] = str(wrapper)
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(cluster))
    text = start(place, unsliced(), path)
    assert "sglang.srt.layers.engram.EngramEmbedding.new_rows: gone" in text
    assert "this SGLang is not the one the plug-in was made for" in text
