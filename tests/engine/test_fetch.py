"""`fetch` with the real `huggingface_hub` against a hub on loopback that breaks in the ways hubs break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub import REPOSITORY, REVISION, Hub, digest, running

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "config.json": b'{"a": 1}\n',
    "model-00001.safetensors": bytes(range(256)) * 4096,
    "model-00002.safetensors": os.urandom(24 << 20),  # over two of the client's pieces of 10 MB
}


def fetch(endpoint: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        "-m",
        "sparkyard_engine.fetch",
        "--repository",
        REPOSITORY,
        "--revision",
        REVISION,
    ]
    argv += ["--output", str(folder / "out"), "--status", str(folder / "status.json")]
    env = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "PYTHONPATH": str(ROOT / "engine"),
        "HF_HOME": str(folder / "home"),
    }
    return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120, check=False)


def test_everything_arrives_checked_and_a_second_run_fetches_nothing(tmp_path: Path) -> None:
    hub = Hub(FILES)
    with running(hub) as endpoint:
        done = fetch(endpoint, tmp_path)
        assert done.returncode == 0, done.stderr
        assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == FILES
        listed = json.loads((tmp_path / "out" / "sparkyard-digests.json").read_text())
        assert listed["revision"] == REVISION
        assert listed["files"] == {name: digest(name, data) for name, data in FILES.items()}
        assert json.loads((tmp_path / "status.json").read_text())["state"] == "done"
        before = dict(hub.sent)
        assert fetch(endpoint, tmp_path).returncode == 0
        assert hub.sent == before


def test_a_hub_that_fails_and_a_body_that_breaks_off_are_asked_again_with_a_range(tmp_path: Path) -> None:
    hub = Hub(FILES, fail_with=[503, 500], cut_once={"model-00002.safetensors"})
    with running(hub) as endpoint:
        done = fetch(endpoint, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model-00002.safetensors").read_bytes() == FILES["model-00002.safetensors"]
    assert "model-00002.safetensors" in hub.ranges


def test_a_wrong_digest_is_named_and_the_file_is_gone(tmp_path: Path) -> None:
    with running(Hub(FILES, lie_about={"model-00001.safetensors"})) as endpoint:
        done = fetch(endpoint, tmp_path)
    assert done.returncode == 1
    assert "model-00001.safetensors: digest" in done.stderr
    assert not (tmp_path / "out" / "model-00001.safetensors").exists()
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["state"] == "failed"
    assert "model-00001" in status["error"]


def test_a_repository_that_is_not_there_says_so_at_once(tmp_path: Path) -> None:
    with running(Hub(FILES)) as endpoint:
        argv = [
            sys.executable,
            "-m",
            "sparkyard_engine.fetch",
            "--repository",
            "no/such",
            "--revision",
            REVISION,
        ]
        env = {**os.environ, "HF_ENDPOINT": endpoint, "PYTHONPATH": str(ROOT / "engine")}
        done = subprocess.run(
            [*argv, "--output", str(tmp_path)],
            capture_output=True,
            text=True,
            env=env,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "404" in done.stderr


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
