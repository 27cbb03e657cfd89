"""`fetch` and `verify` as a person runs them, with the real `huggingface_hub` and a hub on loopback that breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.lab.environment import ensure
from orchestrator.load import load_profile
from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import write_checkpoint
from tests.hub import REPOSITORY, REVISION, Hub, running

ROOT = Path(__file__).resolve().parents[2]
CALL_BOUND_S = 240
PAD_BYTES = 24 << 20
"""Over two of the client's pieces of 10 MB: only then a body that broke off is gone on with."""


@dataclass
class Owner:
    """One node that runs the agent over a pipe and has the checkpoint's disk."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def call(self, verb: str, endpoint: str = "http://127.0.0.1:1") -> tuple[int, dict[str, Any], str]:
        """Exit code, the JSON on standard output, and standard error."""
        argv = [sys.executable, "-m", "orchestrator", verb, "--json"]
        argv += [] if verb == "verify" else ["--yes"]
        argv += [
            "--profile",
            str(self.folder / "profile.yaml"),
            "--cluster",
            str(self.folder / "cluster.yaml"),
        ]
        env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(self.folder / "home")}
        done = subprocess.run(
            argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=CALL_BOUND_S, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A small checkpoint, and one large file beside it."""
    folder = tmp_path_factory.mktemp("made")
    write_checkpoint(folder, Layout.build(layer_ids=(1, 3), vocab_size=200, max_ngram_size=4, heads=8), 200)
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {**found, "model-extra.safetensors": os.urandom(PAD_BYTES)}


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    node = {"name": "spark-1", "transport": "local", "root": str(tmp_path / "node"), "python": sys.executable}
    node["engine_python"] = str(ensure(lambda *_: None).python)
    cluster = {
        "schema": "sparkyard/cluster/v1",
        "topology": "single-host",
        "head": "spark-1",
        "nodes": [node],
    }
    cluster["checkpoint"] = {"node": "spark-1", "path": str(tmp_path / "checkpoint")}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    (tmp_path / "cluster.yaml").chmod(0o600)
    profile = load_profile("lab").model_dump(mode="json", by_alias=True)
    profile["model"] |= {"name": REPOSITORY, "revision": REVISION}
    profile["parallel"] = {"tp": 1, "padding": None}
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(profile))
    made = Owner(tmp_path)
    code, _, words = made.call("build")
    assert code == 0, words
    return made


def test_a_hub_that_fails_and_breaks_off_is_asked_again_and_every_file_is_checked(
    owner: Owner, files: dict[str, bytes]
) -> None:
    hub = Hub(files, fail_with=[503, 500], cut_once={"model-extra.safetensors"})
    with running(hub) as endpoint:
        code, said, words = owner.call("fetch", endpoint)
        assert code == 0, (said, words)
        assert {name: (owner.checkpoint / name).read_bytes() for name in files} == files
        assert "model-extra.safetensors" in hub.ranges
        before = dict(hub.sent)
        code, said, _ = owner.call("fetch", endpoint)
        assert (code, said["stages"]) == (0, [])
        assert hub.sent == before
    code, said, words = owner.call("verify")
    assert (code, said["nodes"]["spark-1"]["faults"]) == (0, []), words


def test_a_wrong_hash_is_named_and_what_was_right_is_not_fetched_again(
    owner: Owner, files: dict[str, bytes]
) -> None:
    bad = "model-00001-0.safetensors"
    hub = Hub(files, lie_about={bad})
    with running(hub) as endpoint:
        code, said, _ = owner.call("fetch", endpoint)
        assert code == 1
        assert bad in said["failures"][0]["message"]
        assert "digest" in said["failures"][0]["message"]
        assert not (owner.checkpoint / bad).exists()
        hub.lie_about.clear()
        before = dict(hub.sent)
        code, said, words = owner.call("fetch", endpoint)
    assert code == 0, (said, words)
    assert (owner.checkpoint / bad).read_bytes() == files[bad]
    again = {name for name, count in hub.sent.items() if count > before.get(name, 0)}
    assert bad in again
    known = json.loads((owner.checkpoint / "sparkyard-digests.json").read_text())
    assert set(known["files"]) == set(files)


def test_verify_names_what_is_wrong_with_the_tree(owner: Owner, files: dict[str, bytes]) -> None:
    with running(Hub(files)) as endpoint:
        assert owner.call("fetch", endpoint)[0] == 0
    flipped, hollow = "model-00000-0.safetensors", "model-00001-0.safetensors"
    data = bytearray(files[flipped])
    data[-1] ^= 1
    (owner.checkpoint / flipped).write_bytes(data)
    code, said, _ = owner.call("verify")
    assert code == 1
    assert any(flipped in words and "digest" in words for words in said["nodes"]["spark-1"]["faults"])
    (owner.checkpoint / flipped).write_bytes(files[flipped])
    (owner.checkpoint / hollow).write_bytes(bytes(len(files[hollow])))
    code, said, _ = owner.call("verify")
    assert code == 1
    assert any(hollow in words and "zero-filled" in words for words in said["nodes"]["spark-1"]["faults"])
    (owner.checkpoint / hollow).unlink()
    (owner.checkpoint / hollow).symlink_to("../../blobs/gone")
    code, said, _ = owner.call("verify")
    assert code == 1
    assert any(hollow in words and "dangling" in words for words in said["nodes"]["spark-1"]["faults"])
    (owner.checkpoint / hollow).unlink()
    hub = Hub(files)
    with running(hub) as endpoint:
        code, said, words = owner.call("fetch", endpoint)
    assert code == 0, (said, words)
    assert set(hub.sent) == {hollow}
    assert owner.call("verify")[0] == 0
