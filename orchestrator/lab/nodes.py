"""The lab's nodes: keys, ports, cluster file, and one SSH server process each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncssh
import psutil
import yaml

from orchestrator.errors import SparkyardError
from orchestrator.lab.place import NODES, Place
from orchestrator.lab.ports import claims, is_free
from orchestrator.model.profile import Profile

START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 15.0
RECORDED = Path(__file__).resolve().parent / "recorded"
REPOSITORY = Path(__file__).resolve().parents[2]


class LabError(SparkyardError):
    """The lab cannot be set up on this machine; the text says what is in the way."""


def prepare(place: Place, profile: Profile, engine_python: Path) -> None:
    """Folders, keys and the cluster file. What is there and good is kept, so that a running lab is found again."""
    place.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not place.key.exists():
        _write_key(place.key)
    public = asyncssh.read_private_key(place.key).export_public_key().decode().strip()
    with claims(place, lambda other: bool(running(other))) as claimed:
        entries = [_node(place, name, public, engine_python, claimed.taken) for name in NODES]
        offsets = _offsets(place, profile, claimed.taken)
        for entry, offset in zip(entries, offsets, strict=True):
            entry["port_offset"] = offset
        own = [int(entry["port"]) for entry in entries]
        own += [port + offset for port in _ports(profile) for offset in offsets]
        claimed.keep(tuple(own))
    document = {
        "schema": "sparkyard/cluster/v1",
        "topology": "single-host",
        "head": NODES[0],
        "checkpoint": {"node": NODES[0], "path": str(place.checkpoint)},
        "nodes": entries,
    }
    text = "# Written by `sparkyard lab`: three nodes on this machine.\n" + yaml.safe_dump(
        document, sort_keys=False
    )
    temporary = place.cluster_file.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(place.cluster_file)


def _node(place: Place, name: str, public: str, engine_python: Path, taken: frozenset[int]) -> dict[str, Any]:
    """Folders and keys of one node; its entry in the cluster file."""
    server = place.server(name)
    server.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.node(name).mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (server / "host_key").exists():
        _write_key(server / "host_key")
    (server / "authorized_keys").write_text(public + "\n", encoding="ascii")
    known = _read(server / "node.json")
    if known is None or not (_running(server) or _usable(int(known["port"]), taken)):
        known = {"name": name, "port": _free_port(taken)}
        (server / "node.json").write_text(json.dumps(known), encoding="utf-8")
    host_key = asyncssh.read_private_key(server / "host_key").export_public_key().decode().strip()
    return {
        "name": name,
        "address": "127.0.0.1",
        "port": known["port"],
        "key": str(place.key),
        "host_key": " ".join(host_key.split()[:2]),
        "python": sys.executable,
        "root": str(place.node(name)),
        "engine_python": str(engine_python),
        "recorded": str(RECORDED / name),
    }


def up(place: Place) -> None:
    """Start the SSH server of every node that has none. LabError when one does not come up."""
    for name in NODES:
        server = place.server(name)
        if _running(server):
            continue
        with (server / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.lab.sshd", str(server)],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started = psutil.Process(process.pid).create_time()
        (server / "pid.json").write_text(
            json.dumps({"pid": process.pid, "started": started}), encoding="utf-8"
        )
        _wait_for_port(server, process)


def down(place: Place) -> None:
    """End the SSH servers that `up` started; nothing else."""
    for name in NODES:
        process = _running(place.server(name))
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_TIMEOUT_S)
            except psutil.TimeoutExpired:
                process.kill()
        (place.server(name) / "pid.json").unlink(missing_ok=True)


def give_ports_back(place: Place) -> None:
    """Other labs may have them: this one is not started again."""
    with claims(place, lambda other: bool(running(other))) as claimed:
        claimed.keep(())


def running(place: Place) -> tuple[str, ...]:
    """Names of the nodes whose SSH server runs."""
    return tuple(name for name in NODES if _running(place.server(name)))


def _running(server: Path) -> psutil.Process | None:
    known = _read(server / "pid.json")
    if known is None:
        return None
    try:
        process = psutil.Process(int(known["pid"]))
        same = abs(process.create_time() - float(known["started"])) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _wait_for_port(server: Path, process: subprocess.Popen[bytes]) -> None:
    port = int((_read(server / "node.json") or {})["port"])
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    log = (server / "log").read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    raise LabError(f"the SSH server of {server.name} does not listen on 127.0.0.1:{port}: {' | '.join(log)}")


def _ports(profile: Profile) -> tuple[int, ...]:
    return (profile.ports.api, profile.ports.gate, profile.ports.rendezvous)


def _offsets(place: Place, profile: Profile, taken: frozenset[int]) -> list[int]:
    """Port offsets of the nodes: those of the last time if the lab may still run, otherwise free ones."""
    if place.cluster_file.exists() and running(place):
        known = yaml.safe_load(place.cluster_file.read_text(encoding="utf-8"))
        return [int(node["port_offset"]) for node in known["nodes"]]
    found: list[int] = []
    for offset in range(0, 20000, 40):
        if all(_usable(port + offset, taken) for port in _ports(profile)):
            found.append(offset)
            if len(found) == len(NODES):
                return found
    raise LabError(f"no free ports from {min(_ports(profile))} on")


def _usable(port: int, taken: frozenset[int]) -> bool:
    return port not in taken and is_free(port)


def _free_port(taken: frozenset[int]) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port


def _write_key(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(asyncssh.generate_private_key("ssh-ed25519", "sparkyard lab").export_private_key())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
