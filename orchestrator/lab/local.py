"""Ranks on this machine without nodes or agents: the lab's reference deployment, and the engine's own
tests."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from orchestrator.errors import SparkyardError
from orchestrator.lab.ports import claims_folder, is_free
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.profile import EnvSetting, Profile
from orchestrator.package import build_package
from orchestrator.plan.launch import Places, rank_specs

GATE_PORT, RENDEZVOUS_PORT, PORTS = 10, 20, 30  # places within a run of free ports; ranks take the first ones
FIRST_PORT, LAST_PORT = 31000, 39000
JOIN_TIMEOUT_S = (
    600.0  # 30 s with three ranks on two idle cores; imports are CPU time, a busy machine needs minutes
)
READY_TIMEOUT_S = 600.0
PROOF_TIMEOUT_S = 20.0  # the ranks prove in the same step; rank 0 is ready seconds later
DRAIN_S = 20.0
POLL_S = 0.25
PROBE_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 25
MEMORY_FLOOR_BYTES = 1 << 30  # of the machine: it is not a node, and others may start and end on it meanwhile
CORES_VARIABLE = "SGLANG_CPU_OMP_THREADS_BIND"


class LocalRankError(SparkyardError):
    """A rank did not come up or went away; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where a local deployment finds things. ``plugins``: further folders on PYTHONPATH, behind the
    engine's."""

    python: Path
    engine: Path
    checkpoint: Path
    packs: Path
    folder: Path
    plugins: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that answers. Times in seconds from the start of its first process."""

    url: str
    rank_urls: tuple[str, ...]
    directories: tuple[Path, ...]
    pids: tuple[int, ...]
    joined_s: float
    ready_s: float


def reference(profile: Profile) -> Profile:
    """The same model on one rank, unpadded, its tables in memory: what the real deployment is compared
    with."""
    return profile.model_copy(
        update={
            "name": f"{profile.name}-reference",
            "parallel": profile.parallel.model_copy(update={"tp": 1, "padding": None}),
            "engram": profile.engram.model_copy(update={"mode": "memory"}),
        }
    )


@contextmanager
def running(profile: Profile, files: Files, stores: Mapping[int, str] | None = None) -> Iterator[Running]:
    """Boots every rank of ``profile`` on loopback behind its guard, and ends them all at the end.

    ``stores`` names each rank's packed store below ``files.packs``. Raises LocalRankError.
    """
    files = replace(files, engine=_installed(files))
    with _free_ports() as port:
        yield from _booted(specs(profile, port, files, stores or {}), files)


def _booted(bodies: Sequence[Mapping[str, Any]], files: Files) -> Iterator[Running]:
    started = time.monotonic()
    guards: list[subprocess.Popen[bytes]] = []
    directories = tuple(Path(body["directory"]) for body in bodies)
    try:
        for body, directory in zip(bodies, directories, strict=True):
            guards.append(_start(body, directory, files))
        urls = tuple(f"http://127.0.0.1:{body['api_port']}" for body in bodies)
        if (gate := bodies[0]["gate_port"]) is not None:
            _wait(f"http://127.0.0.1:{gate}/health", JOIN_TIMEOUT_S, guards, directories)
            httpx.post(f"http://127.0.0.1:{gate}/gate/activate", timeout=PROBE_TIMEOUT_S, trust_env=False)
        joined_s = time.monotonic() - started
        _wait(f"{urls[0]}/ready", READY_TIMEOUT_S, guards, directories)
        _wait_for_proofs(guards, directories)
        pids = tuple(guard.pid for guard in guards)
        yield Running(urls[0], urls, directories, pids, joined_s, time.monotonic() - started)
    finally:
        _stop(guards)


def specs(profile: Profile, port: int, files: Files, stores: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rank specs with the folders filled in; ports from ``port`` on."""
    ranks = profile.parallel.tp
    moved = profile.model_copy(
        update={
            "ports": profile.ports.model_copy(
                update={"api": port, "gate": port + GATE_PORT, "rendezvous": port + RENDEZVOUS_PORT}
            ),
            "deadlines": profile.deadlines.model_copy(update={"drain_s": DRAIN_S}),
            "memory": profile.memory.model_copy(
                update={"floor_bytes": MEMORY_FLOOR_BYTES, "floor_below_start_bytes": None}
            ),
            "settings": tuple(
                # One list of cores a rank is required, as many as there are ranks.
                setting.model_copy(update={"value": "|".join(str(setting.value).split("|")[:ranks])})
                if isinstance(setting, EnvSetting) and setting.env == CORES_VARIABLE
                else setting
                for setting in profile.settings
            ),
        }
    )
    nodes = tuple(
        Node(name=f"local-{rank}", root=str(files.folder), port_offset=rank, engine_python=str(files.python))
        for rank in range(ranks)
    )
    cluster = Cluster(schema="sparkyard/cluster/v1", topology="single-host", head=nodes[0].name, nodes=nodes)
    places = Places(
        engine=":".join(str(path) for path in (files.engine, *files.plugins)),
        checkpoint=str(files.checkpoint),
        packs=str(files.packs),
    )
    made = rank_specs(moved, cluster, generation=1, stores=stores, places=places)
    return [{**spec.body, "directory": str(files.folder / f"rank-{spec.rank}")} for spec in made]


def _installed(files: Files) -> Path:
    """The engine as SGLang finds its plug-in: bare sources have no metadata with the entry point."""
    if any(files.engine.glob("*.dist-info")):
        return files.engine
    package = build_package(files.engine)
    folder = files.folder / f"engine-{package.digest[:16]}"
    with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
        archive.extractall(folder)
    return folder


def _start(body: Mapping[str, Any], directory: Path, files: Files) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    spec = directory / "rank.json"
    spec.write_text(json.dumps(body), encoding="utf-8")
    with (directory / "guard.out").open("wb") as out:
        return subprocess.Popen(
            [str(files.python), "-m", "sparkyard_engine.guard", str(spec)],
            env={**os.environ, "PYTHONPATH": str(files.engine)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def _wait(
    url: str, timeout_s: float, guards: Sequence[subprocess.Popen[bytes]], directories: Sequence[Path]
) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        ended = [place for place, guard in enumerate(guards) if guard.poll() is not None]
        if ended:
            raise LocalRankError(f"rank {ended[0]} ended while {url} was awaited:\n{tails(directories)}")
        try:
            if httpx.get(url, timeout=PROBE_TIMEOUT_S, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass  # not listening yet
        if time.monotonic() > deadline:
            raise LocalRankError(f"{url} did not answer within {timeout_s:.0f} s:\n{tails(directories)}")
        time.sleep(POLL_S)


def _wait_for_proofs(guards: Sequence[subprocess.Popen[bytes]], directories: Sequence[Path]) -> None:
    """What answers must be these ranks, with the plug-in at work, and not a stranger on the same port."""
    deadline = time.monotonic() + PROOF_TIMEOUT_S
    while not all((directory / "proof.json").exists() for directory in directories):
        if time.monotonic() > deadline or any(guard.poll() is not None for guard in guards):
            raise LocalRankError(f"a rank is ready without its plug-in's proof.json:\n{tails(directories)}")
        time.sleep(POLL_S)


def tails(directories: Sequence[Path]) -> str:
    """The end of every rank's engine log: the true error is in one of them only."""
    parts = []
    for directory in directories:
        try:
            lines = (directory / "engine.log").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = ["(no engine.log)"]
        parts.append("\n".join([f"--- {directory.name}", *lines[-LOG_TAIL_LINES:]]))
    return "\n".join(parts)


def _stop(guards: Sequence[subprocess.Popen[bytes]]) -> None:
    """Rank 0 drains and tells the others; whoever is left after that is told by its guard, then killed."""
    deadline = time.monotonic() + DRAIN_S
    for patient in (guards[:1], guards):
        for guard in patient:
            if guard.poll() is None:
                guard.send_signal(signal.SIGTERM)
        for guard in guards:
            try:
                guard.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        deadline = time.monotonic() + DRAIN_S + PROBE_TIMEOUT_S
    for guard in guards:
        if guard.poll() is None:
            guard.kill()
            guard.wait()


@contextmanager
def _free_ports() -> Iterator[int]:
    """The first of PORTS neighbouring ports on loopback that nothing listens on and no other run has claimed.

    A rank listens only many seconds after its ports were chosen, so a run claims them with a file lock.
    """
    claims = claims_folder()
    for first in range(FIRST_PORT, LAST_PORT, PORTS):
        with (claims / str(first)).open("w") as claim:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if all(is_free(first + place) for place in (*range(GATE_PORT), GATE_PORT, RENDEZVOUS_PORT)):
                yield first
                return
    raise LocalRankError(f"no {PORTS} free ports in a row on 127.0.0.1 from {FIRST_PORT} to {LAST_PORT}")
