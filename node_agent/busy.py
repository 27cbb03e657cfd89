"""Who uses this node's processors: seconds of every program since its start, and which programs are ours.

Asked twice, the difference is the load of others. Ours are this agent with what started it and what it started, and
every rank: by the mark that its processes inherited, or by its container.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from node_agent import look, process
from node_agent.actions import containers
from node_agent.docker import present
from node_agent.facts.gpu import container_of
from node_agent.home import Home
from node_agent.watch import host
from node_agent.wire import Refused

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROGRAMS_MAX = 400
"""The busiest; what is left out has used next to nothing."""
KERNEL_PID = 2
"""Parent of the kernel's own threads: they work for somebody else."""
ID_DIGITS = 12
# proc(5), /proc/PID/stat behind the name: fields 4 (parent), 14 to 17 (own time, and that of children that ended), 22
PARENT, TIMES, STARTED = 1, slice(11, 15), 19


def read(home: Home) -> dict[str, Any]:
    """All programs that this user can see, the busiest first."""
    found = [entry for name in os.listdir("/proc") if name.isdecimal() and (entry := _program(int(name)))]
    parents = {entry["pid"]: entry.pop("parent") for entry in found}
    ours = _ours(home, parents)
    for entry in found:
        entry["ours"] = entry["pid"] in ours
    found.sort(key=lambda entry: entry["used_s"], reverse=True)
    return {
        "unix_s": round(time.time(), 3),
        "monotonic_s": round(time.monotonic(), 3),
        **{key: host.read(home)["processor"][key] for key in ("cpus", "busy_s")},
        "programs": found[:PROGRAMS_MAX],
    }


def _program(pid: int) -> dict[str, Any] | None:
    """None for a thread of the kernel, and for what is gone by now."""
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")
    except OSError:
        return None
    fields = after.split()
    parent = int(fields[PARENT])
    if KERNEL_PID in {pid, parent}:
        return None
    return {
        "pid": pid,
        "parent": parent,
        "started_ticks": int(fields[STARTED]),
        "name": before.partition("(")[2][:64],
        "used_s": sum(map(int, fields[TIMES])) / TICKS_PER_S,
    }


def _ours(home: Home, parents: dict[int, int]) -> set[int]:
    ours = {pid for pids in process.marked(look.RANK_MARK).values() for pid in pids}
    above = os.getpid()
    while above > 1 and above not in ours:
        ours.add(above)
        above = parents.get(above, 0)
    contained: set[str] = set()
    if present():
        with contextlib.suppress(Refused):
            contained = {known["id"][:ID_DIGITS] for known in containers.states(home) if known["running"]}
    for pid in parents:
        if _descends(pid, os.getpid(), parents) or (contained and _container(pid) in contained):
            ours.add(pid)
    return ours


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor


def _container(pid: int) -> str | None:
    try:
        return container_of(Path(f"/proc/{pid}/cgroup").read_text("utf-8", "replace"))
    except OSError:
        return None
