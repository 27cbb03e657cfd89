"""A planted API key, through a whole life: in the head's key file and in the answers to its holder, nowhere else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.hardening.figures import Figures
from tests.standin_engine.lab import CALL_TIMEOUT_S, ROOT, StandinLab

SECRET = "sy-planted-5f1d0c2b9a7e"
DOCKER = """#!/bin/sh
printf '%s\\n' "$@" >> {folder}/argv
tr '\\0' '\\n' < /proc/self/environ >> {folder}/environ
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinLab]:
    folder = tmp_path_factory.mktemp("secret")
    key = folder / "api.key"
    key.write_text(SECRET + "\n")
    key.chmod(0o600)
    with StandinLab(folder / "lab", key_file=key) as running:
        yield running


def everything_about_processes(lab: StandinLab) -> dict[str, bytes]:
    """What `ps` and root can read of every process of the lab: argument list and environment."""
    found = {}
    for pid in lab.processes():
        for name in ("cmdline", "environ"):
            try:
                found[f"{pid} {name}"] = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue
    return found


def test_it_is_in_no_list_of_processes_no_log_no_event_and_no_bundle(
    lab: StandinLab, tmp_path: Path, figures: Figures
) -> None:
    seen: dict[str, bytes] = {}
    up = subprocess.Popen(
        lab.command("up", "--json"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while up.poll() is None:
        seen |= everything_about_processes(lab)
    out, err = up.communicate()
    assert up.returncode == 0, err
    seen |= {"up: output": out, "up: errors": err} | everything_about_processes(lab)
    api = lab.call("status")[1]["url"]
    body = {"model": lab.profile.model.served_name, "prompt": "a b", "max_tokens": 2}
    assert httpx.post(f"{api}/completions", json=body).status_code == 401, (
        "the key is not needed: nothing was tried"
    )
    assert (
        httpx.post(f"{api}/completions", json=body, headers={"Authorization": f"Bearer {SECRET}"}).status_code
        == 200
    )
    bundle = tmp_path / "bundle.json"
    for words in (
        ("smoke",),
        ("status",),
        ("logs", "-n", "500"),
        ("explain", "--now"),
        ("doctor", "--bundle", str(bundle)),
        ("plan", "restart"),
    ):
        command = lab.command(*words) if words[0] != "explain" else lab.command(*words, "--json")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=CALL_TIMEOUT_S)
        assert b"Traceback" not in done.stderr, done.stderr
        seen |= {f"{words[0]}: output": done.stdout, f"{words[0]}: errors": done.stderr}
        if words[0] == "logs":
            assert b"api_key='***'" in done.stdout, "the line that holds it was not even read"
    assert bundle.exists()
    below = lab.place.folder.parent
    files = [path for path in (*below.rglob("*"), bundle) if path.is_file() and path.name != "api.key"]
    assert any(path.name == "events.jsonl" for path in files)
    assert any("evidence" in path.parts for path in files)
    seen |= {str(path): path.read_bytes() for path in files}
    assert [place for place, data in seen.items() if SECRET.encode() in data] == []
    assert any(place.endswith("cmdline") for place in seen)
    figures.add("places searched for a planted secret", len(seen))


def test_it_is_in_nothing_that_docker_inspect_can_show(tmp_path: Path) -> None:
    """Docker shows what `docker run` was told: its arguments and its environment. The client here records both."""
    from node_agent.actions import containers
    from node_agent.home import Home
    from node_agent.wire import Refused

    client = tmp_path / "bin" / "docker"
    client.parent.mkdir()
    client.write_text(DOCKER.format(folder=tmp_path))
    client.chmod(0o755)
    key = tmp_path / "api.key"
    key.write_text(SECRET)
    key.chmod(0o600)
    home = Home(tmp_path / "root", "spark-1", "a" * 64)
    (home.share / "real").mkdir(parents=True)
    home.checkpoint.symlink_to(home.share / "real")
    body = {"plugin": {"settings": {"api_key_file": str(key)}}}
    args = {"deployment": "d", "generation": 1, "rank": 0, "spec": "s" * 64, "image": "f" * 64, "body": body}
    before, os.environ["PATH"] = os.environ["PATH"], f"{client.parent}:{os.environ['PATH']}"
    try:
        containers.start(home, args, tmp_path / "folder", ["-m", "x"], {"SPARKYARD_RANK_SPEC": "y"})
    finally:
        os.environ["PATH"] = before
    told = (tmp_path / "argv").read_text() + (tmp_path / "environ").read_text()
    assert f"type=bind,source={key},target={key},readonly" in told
    assert SECRET not in told
    key.chmod(0o640)
    with pytest.raises(Refused, match="has mode 640, others can read the API key"):
        containers.secrets(body)
