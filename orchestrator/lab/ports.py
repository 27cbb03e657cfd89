"""Which ports the labs of this user have on this machine. A lab listens only long after it has chosen its ports."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from orchestrator.lab.place import Place


@dataclass(frozen=True, slots=True)
class Claim:
    """The ports of the lab in `folder`: held while that lab runs, or the process that chose them lives."""

    folder: str
    pid: int
    started: float
    ports: tuple[int, ...]


class Claims:
    """The claims of all other labs, and this lab's own; read and written under one lock."""

    def __init__(self, path: Path, folder: Path, live: Callable[[Claim], bool]) -> None:
        self._path, self._folder = path, str(folder)
        self._others = [claim for claim in _read(path) if claim.folder != self._folder and live(claim)]

    @property
    def taken(self) -> frozenset[int]:
        """Ports of the others."""
        return frozenset(port for claim in self._others for port in claim.ports)

    def keep(self, ports: tuple[int, ...]) -> None:
        """This lab's ports from now on; none: they are given back."""
        own = Claim(self._folder, os.getpid(), psutil.Process().create_time(), ports)
        entries = [asdict(claim) for claim in [*self._others, *([own] if ports else [])]]
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(entries, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


def claims_folder() -> Path:
    """Where this user's runs say which ports they have chosen; made when it is missing."""
    folder = Path(tempfile.gettempdir()) / f"sparkyard-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def is_free(port: int) -> bool:
    """Whether nothing listens on the port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def claims(place: Place, runs: Callable[[Place], bool]) -> Iterator[Claims]:
    """The claims, for as long as the block lasts. ``runs`` says whether the lab of a place has a node up."""
    folder = claims_folder()
    with (folder / "lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Claims(
            folder / "lab.json", place.folder, lambda claim: _lives(claim) or runs(Place(Path(claim.folder)))
        )


def _lives(claim: Claim) -> bool:
    try:
        return abs(psutil.Process(claim.pid).create_time() - claim.started) < 1.0
    except psutil.NoSuchProcess:
        return False


def _read(path: Path) -> list[Claim]:
    """A damaged file claims nothing: the ports are still tried before they are taken."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return [
            Claim(
                str(entry["folder"]),
                int(entry["pid"]),
                float(entry["started"]),
                tuple(map(int, entry["ports"])),
            )
            for entry in found
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
