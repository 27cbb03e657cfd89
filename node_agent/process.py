"""Processes are known by pid, start time and boot: a pid alone may belong to somebody else by now."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from node_agent.files import read_json, tail, write_json

MARK_FILE = "rank.json"
"""The rank spec: what the mark of a rank's processes names, in the folder that they are started in."""
VARIABLE = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*=")
"""What a whole environment begins with."""
RECORDED_TIMEOUT_S = 60.0
"""A Python start on a busy node takes 0.1 to 2 s, on an emulated processor 20 s; one that ends is noticed at once."""


def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/pid/stat); None when it is gone.

    A zombie counts as gone: it holds no memory and no port. Not so one whose other threads have yet to end.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in {"Z", "X"} and len(_threads(pid)) <= 1 else int(fields[19])


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def record(pid: int) -> dict[str, Any]:
    """What identifies a running process. ProcessLookupError when it is gone already."""
    ticks = start_ticks(pid)
    if ticks is None:
        raise ProcessLookupError(pid)
    return {"pid": pid, "start_ticks": ticks, "boot_id": boot_id()}


def alive(path: Path) -> int | None:
    """The pid of the process recorded in ``path``, if it is still the same process; else None."""
    known = read_json(path)
    if known is None or known.get("boot_id") != boot_id():
        return None
    pid, ticks = known.get("pid"), known.get("start_ticks")
    if not isinstance(pid, int) or pid <= 1 or start_ticks(pid) != ticks:
        return None
    return pid


def marked(marker: str) -> dict[str, list[int]]:
    """Pids of this user's processes by the value of the environment variable ``marker``, inherited from its start.

    A mark is found even when the parents in between are dead, which a process group or a session is not after
    the engine has made sessions of its own. Its value is a file `MARK_FILE` in the folder that the first of them
    was started in. That folder is the mark of what has lost its environment: SGLang's schedulers rename themselves,
    which writes over the beginning of it, and a process that is ending loses it before it lets go of its ports.
    """
    prefix = f"{marker}=".encode()
    found: dict[str, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except ProcessLookupError:
            environment = b""  # it is ending
        except OSError:
            continue
        line = next((line for line in environment.split(b"\0") if line.startswith(prefix)), None)
        value = "" if line is None else line[len(prefix) :].decode("utf-8", "replace")
        if not value and not VARIABLE.match(environment):
            value = _mark_of_folder(int(entry))
        if value and start_ticks(int(entry)) is not None:
            found.setdefault(value, []).append(int(entry))
    return found


def _mark_of_folder(pid: int) -> str:
    """The mark by the folder that a process works in; of one that is ending, that its last threads work in.

    The rank spec in it says how the folder is called: a root that is a symbolic link has two names.
    """
    for place in (f"/proc/{pid}", *(f"/proc/{pid}/task/{thread}" for thread in _threads(pid))):
        try:
            spec = read_json(Path(os.readlink(f"{place}/cwd")) / MARK_FILE) or {}
        except OSError:
            continue
        directory = spec.get("directory")
        return f"{directory}/{MARK_FILE}" if isinstance(directory, str) else ""
    return ""


def kill_marked(marker: str, value: str, timeout_s: float) -> list[int]:
    """SIGKILL every process that carries the mark, again until none is left; the pids that survive the bound."""
    end = time.monotonic() + timeout_s
    while left := marked(marker).get(value, []):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        if time.monotonic() > end:
            return left
        time.sleep(0.1)
    return []


def claim(folder: Path) -> bool:
    """Called in the new process before anything else: take the folder's lock and record this process.

    The lock is inherited by what this process becomes, so a folder never has two, whoever started them and
    however often; the record is written by the process itself, so that none runs unrecorded.
    """
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    os.set_inheritable(handle, True)
    write_json(folder / "pid.json", record(os.getpid()))
    return True


def spawn(verb: str, folder: Path, log: Path) -> int:
    """Start this agent's own program as ``verb folder`` in a session of its own, so that it outlives the channel.

    Returns the pid once the process has recorded itself. ChildProcessError when it did not within the bound.
    """
    base = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "USER") if key in os.environ}
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-I", sys.argv[0], verb, str(folder)],
            env=base,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
        )
    end = time.monotonic() + RECORDED_TIMEOUT_S
    while time.monotonic() < end:
        known = read_json(folder / "pid.json")
        if known is not None and known.get("pid") == child.pid:
            threading.Thread(target=child.wait, daemon=True).start()  # so that its end leaves no zombie
            return child.pid
        if child.poll() is not None:
            break
        time.sleep(0.02)
    raise ChildProcessError(f"{verb} in {folder} did not start: {' | '.join(tail(log, 3)) or 'no output'}")
