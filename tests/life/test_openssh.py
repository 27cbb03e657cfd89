"""The transport against a real OpenSSH server with its defaults (MaxSessions 10), and an agent that dies."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from orchestrator.model.cluster import Cluster
from orchestrator.remote.node import Ask, reply
from orchestrator.remote.nodes import nodes
from orchestrator.verbs import Session
from orchestrator.watch import key
from tests.clusters import lab_profile

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDIhz2GK/XCUj4i6Q5yQJNL1MKMY0RxzPV2QrBqfHrDq another"
AT_ONCE = 30
"""Three times the sessions that OpenSSH allows on one connection: they all go over one channel."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not Path(SSHD).exists():
        pytest.fail(f"{SSHD} is missing: apt install openssh-server")
    folder = tmp_path_factory.mktemp("sshd")
    folder.chmod(0o700)
    for name in ("host", "user"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        (folder / name).write_bytes(key.export_private_key())
        (folder / name).chmod(0o600)
    (folder / "home").mkdir()
    host = asyncssh.read_private_key(folder / "host").export_public_key().decode().strip()
    user = asyncssh.read_private_key(folder / "user").export_public_key().decode()
    (folder / "authorized").write_text(user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized "
        f"{folder}/home/.ssh/authorized_keys\nSetEnv HOME={folder}/home\n"
        f"StrictModes no\nUsePAM no\nPidFile {folder}/pid\nPermitRootLogin prohibit-password\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(folder / "config")], stderr=(folder / "log").open("wb")
    )
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield Cluster.model_validate(
        {
            "schema": "sparkyard/cluster/v1",
            "topology": "single-host",
            "head": "spark-1",
            "nodes": [
                {
                    "name": "spark-1",
                    "port": port,
                    "user": getpass.getuser(),
                    "key": str(folder / "user"),
                    "host_key": host,
                    "python": sys.executable,
                    "root": str(folder / "root"),
                }
            ],
        }
    )
    process.terminate()
    process.wait()


def test_many_requests_at_once_on_one_connection(server: Cluster) -> None:
    async def go() -> None:
        node = nodes(server)["spark-1"]
        try:
            answers = await asyncio.gather(*(reply(node, Ask("ping"), timeout_s=60) for _ in range(AT_ONCE)))
            assert [answer.failure for answer in answers] == [None] * AT_ONCE
            facts = await reply(node, Ask("facts"), timeout_s=30)
            assert facts.value["node"] == "spark-1"
        finally:
            await node.close()

    asyncio.run(go())


def agent_pids(folder: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(folder.encode()) and word.endswith(b".pyz") for word in words):
                found.append(int(entry))
    return found


def test_a_killed_agent_is_a_failure_and_the_next_request_starts_another(server: Cluster) -> None:
    async def go() -> None:
        node = nodes(server)["spark-1"]
        try:
            assert (await reply(node, Ask("ping"), timeout_s=30)).failure is None
            (pid,) = agent_pids(server.nodes[0].root)
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 10
            while agent_pids(server.nodes[0].root) and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            answers = [await reply(node, Ask("ping"), timeout_s=30) for _ in range(2)]
            assert answers[-1].failure is None
        finally:
            await node.close()

    asyncio.run(go())


def test_the_agent_ends_with_its_channel(server: Cluster) -> None:
    async def go() -> None:
        node = nodes(server)["spark-1"]
        assert (await reply(node, Ask("ping"), timeout_s=30)).failure is None
        await node.close()

    asyncio.run(go())
    deadline = time.monotonic() + 15
    while agent_pids(server.nodes[0].root) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert agent_pids(server.nodes[0].root) == []


def test_the_monitor_s_own_key_runs_the_agent_and_nothing_else(server: Cluster, tmp_path: Path) -> None:
    session = Session(lab_profile(), server, lambda _: None)

    async def go() -> Path:
        async with session.world() as world:
            return await key.put_in_place(world, session.profile.name, tmp_path / "state")

    node = server.nodes[0]
    authorized = Path(node.root).parent / "home" / ".ssh" / "authorized_keys"
    authorized.parent.mkdir(exist_ok=True)
    authorized.write_text("# by hand\n")
    private = asyncio.run(go())
    assert private.stat().st_mode & 0o777 == 0o600
    first = authorized.read_text()
    by_hand, line = first.splitlines()
    assert by_hand == "# by hand"
    assert line.startswith("restrict ssh-ed25519 ")
    assert line.endswith(f" sparkyard-monitor-{session.profile.name}")
    assert asyncio.run(go()) == private
    assert authorized.read_text() == first
    options = ["-i", str(private), "-p", str(node.port), "-F", "none"]
    options += ["-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
    options += ["-o", f"UserKnownHostsFile={tmp_path}/known", f"{node.user}@127.0.0.1"]

    def ssh(*words: str) -> subprocess.CompletedProcess[str]:
        argv = ["ssh", *words[:-1], *options, *words[-1:]]
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL
        )

    assert ssh("true").returncode == 0
    assert "PTY allocation request failed" in ssh("-tt", "true").stderr
    forwarded = subprocess.run(
        ["ssh", "-W", f"127.0.0.1:{node.port}", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert forwarded.returncode != 0
    assert "prohibited" in forwarded.stderr


def test_a_node_that_does_not_take_the_key_is_named(server: Cluster, tmp_path: Path) -> None:
    """The public key that was written is not that of the private one."""
    session = Session(lab_profile(), server, lambda _: None)

    async def go() -> None:
        async with session.world() as world:
            private, _ = key.make(tmp_path / "state")
            private.with_suffix(".pub").write_text(OTHER_KEY)
            await key.put_in_place(world, session.profile.name, tmp_path / "state")

    with pytest.raises(key.KeyRefusedError, match=r"spark-1: .*authorized_keys has the monitor's key, but"):
        asyncio.run(go())
