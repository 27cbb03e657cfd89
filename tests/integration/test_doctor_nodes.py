"""Nodes that hang, are slow, are full or lack Python, behind real OpenSSH: each is named, the others are judged."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from orchestrator import doctor, examination
from orchestrator.each import LOOK_TIMEOUT_S
from orchestrator.load import load_profile
from orchestrator.model.cluster import Cluster
from orchestrator.remote.node import Ask, reply
from orchestrator.remote.nodes import nodes
from orchestrator.remote.ssh import CONNECT_TIMEOUT_S
from orchestrator.verbs import Session

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
START_TIMEOUT_S = 10.0
SLOW_S = 3.0
ROOM = "size=1m"
"""Of a node's disk: more than the agent, little enough to be filled at once."""
OLD_PYTHONS = (
    "python3.9",
    "python3.8",
    "python3.7",
    *map(str, sorted(Path("~/.pyenv/versions").expanduser().glob("3.[6-9].*/bin/python3"))),
)


@dataclass
class Servers:
    """Real SSH servers on loopback, one behaviour each."""

    folder: Path
    stack: ExitStack
    host: str
    entries: list[dict[str, Any]]

    def add(self, name: str, command: str = "") -> Path:
        """A server whose commands go through `command` (sshd's ForceCommand); the node's root."""
        port = free_port()
        config = self.folder / f"{name}.conf"
        lines = [
            f"ListenAddress 127.0.0.1:{port}",
            f"HostKey {self.folder}/host",
            f"AuthorizedKeysFile {self.folder}/authorized",
            "StrictModes no",
            "UsePAM no",
            f"PidFile {self.folder}/{name}.pid",
            "PermitRootLogin prohibit-password",
            *([f"ForceCommand {command}"] if command else []),
        ]
        config.write_text("\n".join(lines) + "\n")
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log)
        self.stack.callback(end, process)
        await_port(port)
        return self._entry(name, port)

    def silent(self, name: str) -> None:
        """A machine that takes connections and never says a word, as a wedged kernel does."""
        listening = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._entry(name, int(listening.getsockname()[1]))

    def _entry(self, name: str, port: int) -> Path:
        root = self.folder / "roots" / name
        root.mkdir(parents=True)
        entry = {"name": name, "port": port, "user": getpass.getuser(), "key": str(self.folder / "user")}
        self.entries.append({**entry, "host_key": self.host, "root": str(root)})
        return root

    def cluster(self, **python: str) -> Cluster:
        """All of them."""
        rows = [
            {**row, "python": python.get(row["name"].replace("-", "_"), sys.executable)}
            for row in self.entries
        ]
        data = {
            "schema": "sparkyard/cluster/v1",
            "topology": "single-host",
            "head": rows[0]["name"],
            "nodes": rows,
        }
        return Cluster.model_validate(data)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(START_TIMEOUT_S)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def await_port(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"no SSH server on port {port}")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    if not Path(SSHD).exists():
        pytest.fail(f"{SSHD} is missing: apt install openssh-server")
    tmp_path.chmod(0o700)
    for name in ("host", "user"):
        (tmp_path / name).write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
        (tmp_path / name).chmod(0o600)
    host = asyncssh.read_private_key(tmp_path / "host").export_public_key().decode().strip()
    (tmp_path / "authorized").write_text(
        asyncssh.read_private_key(tmp_path / "user").export_public_key().decode()
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with ExitStack() as stack:
        yield Servers(tmp_path, stack, host, [])


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A disk of its own under the node's root."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", ROOM, "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    with suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    assert os.statvfs(place).f_bavail == 0


def diagnose(cluster: Cluster) -> tuple[examination.Diagnosis, float, int]:
    """What `./start.sh doctor` does; its seconds and its exit code."""

    async def look() -> examination.Diagnosis:
        session = Session(load_profile("lab"), cluster, lambda _: None)
        goal, _ = session.goal()
        async with session.world() as world:
            return await examination.diagnose(world, goal)

    begin = time.monotonic()
    found = asyncio.run(look())
    took_s = time.monotonic() - begin
    return found, took_s, int(doctor.answer(found, doctor.Options(), None).exit_code)


def put_the_agent(cluster: Cluster, name: str) -> None:
    async def work() -> None:
        node = nodes(cluster)[name]
        try:
            assert (await reply(node, Ask("ping"), timeout_s=30.0)).failure is None
        finally:
            await node.close()

    asyncio.run(work())


def old_python() -> str | None:
    """A Python below 3.10 on this machine."""
    for name in OLD_PYTHONS:
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk is a mount")
def test_each_sick_node_is_named_and_the_others_are_judged(servers: Servers) -> None:
    tools = servers.folder / "no-python"
    tools.mkdir()
    for tool in ("sh", "cat"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    original = 'sh -c "$SSH_ORIGINAL_COMMAND"'
    servers.add("sound")
    servers.add("slow", f"sleep {SLOW_S}; {original}")
    servers.add("stuck", "exec timeout 120 sleep 120")
    servers.silent("silent")
    servers.add("no-python", f"PATH={tools} {original}")
    full_new, full_later = servers.add("full-new"), servers.add("full-later")
    wanted = {
        "stuck": f"no answer within {LOOK_TIMEOUT_S:.0f} s",
        "silent": f"within {CONNECT_TIMEOUT_S:.0f} s",
        "no-python": "no python3 on the node: install Python 3.10 or newer",
        "full-new": "No space left on device",
    }
    python = old_python()
    if python is not None:
        servers.add("old-python")
        wanted["old-python"] = "sparkyard needs Python 3.10 or newer on the node"
    with small_disk(full_new), small_disk(full_later):
        fill(full_new)
        cluster = servers.cluster(old_python=python or "")
        put_the_agent(cluster, "full-later")
        fill(full_later)
        found, took_s, code = diagnose(cluster)
    silent = {f.node: f.measured for f in found.findings if f.check == "node.reachable"}
    assert set(silent) == set(wanted), silent
    for name, text in wanted.items():
        assert text in silent[name], (name, silent[name])
    assert took_s < LOOK_TIMEOUT_S + 15.0, "the slowest bound, and the reading of this machine's facts"
    assert code in (1, 3), "somebody did not answer: never fine"
    seen = {node.name: node for node in found.yard.seen}
    assert set(seen) == {"sound", "slow", "full-later"}
    for node in seen.values():
        assert node.hardware is not None
        assert node.facts.memory is not None
        assert node.facts.memory.value is not None
    judged = {name: {(f.check, f.severity) for f in found.findings if f.node == name} for name in seen}
    assert judged["slow"] == judged["sound"], "slow to answer is not sick"
    full = [f for f in found.findings if f.check == "disk.free" and f.node == "full-later"]
    assert str(full_later) in full[0].measured
    assert full[0].severity == "error"


def test_an_old_python_is_refused_in_words(tmp_path: Path) -> None:
    """The agent's own entry, run by a Python that could not read the rest of it."""
    python = old_python()
    if python is None:
        pytest.skip("no Python below 3.10 on this machine")
    from orchestrator.remote.bundle import agent

    place = tmp_path / "agent.pyz"
    place.write_bytes(agent()[1])
    done = subprocess.run([python, "-I", str(place)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "sparkyard needs Python 3.10 or newer on the node" in done.stderr
    assert "nodes.*.python" in done.stderr
    assert "Traceback" not in done.stderr
