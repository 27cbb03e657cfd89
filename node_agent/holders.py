"""Who holds this node's memory now: processes, their memory on the GPU, and files in shared memory."""

from __future__ import annotations

import os
import pwd
import re
import time
from pathlib import Path
from typing import Any

from node_agent import look, process
from node_agent.actions import containers
from node_agent.facts import gpu
from node_agent.facts.source import Live
from node_agent.home import Home

LEAST_BYTES = 64 << 20
"""Smaller ones explain no memory that is missed: tolerances are a GiB and more."""
NAMED_MAX = 12
COMMAND_WORDS = 3
"""Command lines can carry secrets: no more words of them are told."""
SHARED = Path("/dev/shm")  # noqa: S108 - looked at, never written
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def read(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Largest first, those that began after the newest boot of `deployment` before all others."""
    began = max(
        (
            float(boot.get("started_unix_s", 0.0))
            for boot in look.boots(home)
            if boot.get("deployment") == args.get("deployment")
        ),
        default=None,
    )
    found = [*_processes(_on_gpu(home)), *_files()]
    for entry in found:
        entry["after_boot"] = began is not None and entry.pop("started_unix_s") >= began
        entry.pop("started_unix_s", None)
    found = [entry for entry in found if entry["bytes"] >= LEAST_BYTES]
    found.sort(key=lambda entry: (not entry["after_boot"], -entry["bytes"]))
    return {"available_bytes": look.memory()["available_bytes"], "holders": found[:NAMED_MAX]}


def _on_gpu(home: Home) -> dict[int, int]:
    """Bytes by pid as nvidia-smi says: on unified memory they are the host's, and in no process's resident set."""
    if not containers.GPU_DRIVER.exists():
        return {}
    asked = gpu.asked(Live(own=str(home.root)), gpu.APPS)
    return {app["pid"]: app["bytes"] or 0 for app in gpu.parse_apps(asked.out)} if asked else {}


def _processes(on_gpu: dict[int, int]) -> list[dict[str, Any]]:
    since = time.time() - float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            status = Path(f"/proc/{name}/status").read_text(encoding="utf-8", errors="replace")
            words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            uid = Path(f"/proc/{name}").stat().st_uid
        except OSError:
            continue
        ticks = process.start_ticks(int(name))
        if ticks is None:
            continue
        own = sum(_field(status, key) for key in ("RssAnon", "RssShmem"))
        found.append(
            {
                "pid": int(name),
                "user": _user(uid),
                "command": " ".join(words.split()[:COMMAND_WORDS])[:300] or _name(status),
                "bytes": own + on_gpu.get(int(name), 0),
                "gpu_bytes": on_gpu.get(int(name), 0),
                "started_unix_s": since + ticks / TICKS_PER_S,
            }
        )
    return found


def _files() -> list[dict[str, Any]]:
    """Segments that a dead engine leaves in shared memory hold it until somebody removes them."""
    found = []
    try:
        entries = list(os.scandir(SHARED))
    except OSError:
        return []
    for entry in entries:
        try:
            seen = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        found.append(
            {
                "pid": None,
                "user": _user(seen.st_uid),
                "command": entry.path[:300],
                "bytes": seen.st_blocks * 512,
                "gpu_bytes": 0,
                "started_unix_s": seen.st_mtime,
            }
        )
    return found


def _field(status: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d{{1,15}}) kB", status, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def _name(status: str) -> str:
    return status.partition("\n")[0].partition("\t")[2][:100]


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
