"""Wrong inputs on purpose: each a clear message and the right exit code, never a traceback, nothing half-done."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
import yaml

from orchestrator.lab.place import NODES
from tests.standin_engine.lab import ROOT, StandinLab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinLab]:
    with StandinLab(tmp_path_factory.mktemp("lab")) as running:
        running.command("status")  # writes the profile
        yield running


def run(*argv: str, cwd: Path = ROOT) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *argv],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def with_files(lab: StandinLab, tmp_path: Path, *, profile=None, cluster=None) -> tuple[str, ...]:
    """Command-line words for changed copies of the lab's two files."""
    words = []
    for option, source, change in (
        ("--profile", lab.place.folder / "profile.yaml", profile),
        ("--cluster", lab.place.cluster_file, cluster),
    ):
        data = yaml.safe_load(source.read_text())
        if change:
            change(data)
        path = tmp_path / source.name
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        words += [option, str(path)]
    return tuple(words)


def failing(
    lab: StandinLab, tmp_path: Path, verb: str, *, ignore: tuple[str, ...] = (), **changes
) -> tuple[int, str]:
    ignored = [word for check in ignore for word in ("--ignore", check)]
    code, out, err = run(verb, "--json", *ignored, *with_files(lab, tmp_path, **changes))
    return code, out + err


def test_an_unknown_key_and_a_wrong_type_are_told_at_once(lab: StandinLab, tmp_path: Path) -> None:
    def change(data):
        data["bogus"] = 1
        data["parallel"]["tp"] = "three"

    code, text = failing(lab, tmp_path, "up", profile=change)
    assert code == 2
    assert "bogus: unknown key" in text
    assert "parallel.tp" in text
    assert "profile.yaml" in text


def test_a_setting_of_no_class(lab: StandinLab, tmp_path: Path) -> None:
    code, text = failing(
        lab, tmp_path, "up", profile=lambda data: data["settings"].append({"flagg": "--x", "why": "y"})
    )
    assert code == 2
    assert "a setting of no class" in text


def test_a_flag_that_the_engine_does_not_know(lab: StandinLab, tmp_path: Path) -> None:
    setting = {"flag": "--no-such-flag", "why": "a typo"}
    code, text = failing(lab, tmp_path, "up", profile=lambda data: data["settings"].append(setting))
    assert code == 2
    assert "--no-such-flag" in text


def test_a_wrong_host_key_is_refused(lab: StandinLab, tmp_path: Path) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()

    def change(data):
        data["nodes"][1]["host_key"] = other

    code, text = failing(lab, tmp_path, "up", cluster=change)
    assert code == 1
    assert "spark-2" in text
    assert "not the pinned one" in text


def test_an_unreachable_node_is_named(lab: StandinLab, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

        def change(data):
            data["nodes"][2]["port"] = port

        code, text = failing(lab, tmp_path, "up", cluster=change)
    assert code == 1
    assert "spark-3" in text


def test_a_key_file_open_to_others(lab: StandinLab, tmp_path: Path) -> None:
    key = tmp_path / "key"
    shutil.copy(lab.place.key, key)
    key.chmod(0o644)

    def change(data):
        for node in data["nodes"]:
            node["key"] = str(key)

    code, text = failing(lab, tmp_path, "status", cluster=change)
    assert code == 2
    assert "644" in text


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_shard_is_named(lab: StandinLab, tmp_path: Path, damage: str) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(lab.place.checkpoint, copy)
    shard = min(copy.glob("*.safetensors"))
    if damage == "missing":
        shard.unlink()
    else:
        with shard.open("r+b") as file:
            file.truncate(shard.stat().st_size - 1000)
    code, text = failing(
        lab, tmp_path, "share", cluster=lambda data: data["checkpoint"].update(path=str(copy))
    )
    assert code == 1
    assert shard.name in text


def test_a_port_in_use_is_named_with_its_owner(lab: StandinLab, tmp_path: Path) -> None:
    assert lab.do("pack").exit_code == 1, "not shared yet"
    assert lab.do("build").exit_code == 0
    assert lab.do("share").exit_code == 0
    assert lab.do("pack").exit_code == 0
    offset = yaml.safe_load(lab.place.cluster_file.read_text())["nodes"][0]["port_offset"]
    port = lab.profile.ports.api + offset
    with socket.create_server(("127.0.0.1", port)):
        code, text = failing(lab, tmp_path, "serve")
        assert code == 1
        assert f"port {port} on 127.0.0.1" in text, "the doctor's error stops the start"
        assert f"(pid {os.getpid()})" in text
        code, text = failing(lab, tmp_path, "serve", ignore=("port.taken",))
    assert code == 1
    assert f"port {port} (api) is taken by" in text, "and so does the plan, whatever is ignored"
    assert f"pid {os.getpid()}" in text
    assert not any(found.alive for here in lab.facts().values() for found in here.ranks)


def test_a_full_disk_says_how_much_is_missing(lab: StandinLab, tmp_path: Path) -> None:
    """A node whose root is on a filesystem of 1 MB."""
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:

        def change(data):
            data["nodes"][1]["root"] = str(small)

        code, text = failing(lab, tmp_path, "up", cluster=change)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert code == 1
    assert "spark-2" in text
    assert "space" in text or "free" in text


def test_a_second_controller_is_told_who_holds_the_lease(lab: StandinLab, tmp_path: Path) -> None:
    import asyncio

    from orchestrator.remote.node import Ask, reply

    async def hold() -> tuple[int, str]:
        async with lab.session().world() as world:
            node = world.nodes["spark-2"]
            taken = await reply(node, Ask("lease", {"holder": "another person"}), timeout_s=20)
            assert taken.failure is None
            return await asyncio.to_thread(failing, lab, tmp_path, "up")

    code, text = asyncio.run(hold())
    assert code == 1
    assert "another person" in text


def test_no_cluster_file(tmp_path: Path) -> None:
    code, out, err = run("status", "--json", "--cluster", str(tmp_path / "none.yaml"), "--profile", "lab")
    assert code == 2
    assert json.loads(out)["error"] == "ConfigError"
    assert "none.yaml" in err


def test_usage_errors_exit_2(lab: StandinLab) -> None:
    assert run("plan", "dance")[0] == 2
    assert run("up", "--no-such-option")[0] == 2
    assert run("doctor", "--ignore", "no.such.check", *("--cluster", str(lab.place.cluster_file)))[0] == 2
    assert (
        run("status", "--nodes", "spark-9", "--cluster", str(lab.place.cluster_file), "--profile", "lab")[0]
        == 2
    )
    assert NODES
