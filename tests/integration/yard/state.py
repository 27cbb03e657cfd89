"""What a yard keeps on the host while it is up: one folder, and processes known by pid and start time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.integration.yard.layout import ID_PATTERN

STATE_ROOT = Path("/var/tmp")  # on a real disk; /tmp is hidden inside the nodes
KILL_WAIT_S = 10.0


class YardError(Exception):
    """The yard could not be made or taken down; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, safe against reuse of its pid."""

    pid: int
    started_ticks: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        stat = _stat(self.pid)
        return stat is not None and stat[1] == self.started_ticks and stat[0] != "Z"


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time (ticks since boot) of a process; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def folder(yard_id: str) -> Path:
    """The yard's state folder."""
    if not ID_PATTERN.match(yard_id):
        raise YardError(f"yard id {yard_id!r}: up to 8 lower-case letters and digits, a letter first")
    return STATE_ROOT / f"sparkyard-yard-{yard_id}"


def remember(where: Path, name: str, pid: int) -> None:
    """Record a process under ``name``."""
    stat = _stat(pid)
    if stat is None:
        raise YardError(f"{name} ended at once; see {where}/{name}.log")
    pids = where / "pids"
    pids.mkdir(exist_ok=True)
    (pids / name).write_text(json.dumps({"pid": pid, "started_ticks": stat[1]}))


def process(where: Path, name: str) -> Process | None:
    """The recorded process called ``name`` if it still runs."""
    try:
        found = Process(**json.loads((where / "pids" / name).read_text()))
    except (OSError, ValueError):
        return None
    return found if found.alive else None


def end(where: Path, name: str) -> None:
    """Kill a recorded process and wait until it is gone. `unshare --fork` ignores SIGTERM, hence SIGKILL."""
    found = process(where, name)
    if found is not None:
        os.kill(found.pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_WAIT_S
        while found.alive:
            if time.monotonic() > deadline:
                raise YardError(
                    f"process {found.pid} ({name}) is still there {KILL_WAIT_S:.0f} s after SIGKILL"
                )
            time.sleep(0.02)
    (where / "pids" / name).unlink(missing_ok=True)


def names(where: Path) -> list[str]:
    """Names of all recorded processes."""
    pids = where / "pids"
    return sorted(entry.name for entry in pids.iterdir()) if pids.is_dir() else []


def child_of(pid: int) -> int | None:
    """The only child of ``pid``, or None."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def run(*argv: str, check: bool = True, timeout_s: float = 60.0, stdin: str | None = None) -> str:
    """Run a tool; its output. YardError with its last words when it fails and ``check`` is set."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, input=stdin, check=False)
    if check and done.returncode != 0:
        raise YardError(
            f"{' '.join(argv)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"
        )
    return done.stdout


def need_root() -> None:
    """Namespaces want root."""
    if os.geteuid() != 0:
        raise YardError("a yard is made of namespaces and needs root: run it with sudo")


def remove_tree(where: Path) -> None:
    """Remove a folder. The mounts went with their namespaces; a Docker store may still take a moment."""
    deadline = time.monotonic() + KILL_WAIT_S
    while where.exists():
        done = subprocess.run(["rm", "-rf", str(where)], capture_output=True, text=True, check=False)
        if done.returncode != 0 and time.monotonic() > deadline:
            raise YardError(f"{where}: {done.stderr.strip()[-500:]}")
        if done.returncode != 0:
            time.sleep(0.1)
