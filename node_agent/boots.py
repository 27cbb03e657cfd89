"""Boot records: what a start of the gang took on this node, measured, beside what was predicted for it."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

from node_agent import look, process
from node_agent.files import read_json, write_json
from node_agent.home import Home
from node_agent.watch.host import DRIVE
from node_agent.wire import Refused

SECTOR_BYTES = 512
SECTORS_READ_FIELD = 5
"""Column of /proc/diskstats (Documentation/admin-guide/iostats.rst)."""
NFS_SERVER_READ = 4
"""Column of the line `bytes:` in /proc/self/mountstats: bytes that were asked of the server."""
LOG_HEAD_BYTES = 8 << 20
"""The boot's part of the log; serving adds a line every few seconds."""
GIB = 1 << 30
GRAPHS = re.compile(r"Capture .*\bend\b.*mem usage=(\d+(?:\.\d+)?) GB", re.IGNORECASE)
"""SGLang 0.5.23, once for the main model and once for each draft; its GB are GiB."""
DRIVER = Path("/proc/driver/nvidia/version")


def begin(home: Home, deployment: str, generation: int) -> int:
    """The record of a start, made before anything is started; MemAvailable from before, also of an earlier call."""
    path = home.boot_file(deployment, generation)
    if not path.exists():
        record = {
            "deployment": deployment,
            "generation": generation,
            "memory_before_bytes": look.memory()["available_bytes"],
            "started_unix_s": time.time(),
            "read_before": _read_bytes(),
        }
        write_json(path, record)
    return int((read_json(path) or {})["memory_before_bytes"])


def complete(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Write down what the boot took; called once it is proven to serve as it should.

    `args`: `deployment`, `generation`, `rank`, `predicted` (bytes by line of the memory ledger, empty when there is
    none), `profile` (its identity) and `goal` (what brings this very deployment back). Refused for a foreign boot.
    """
    deployment, generation, rank = str(args["deployment"]), int(args["generation"]), int(args["rank"])
    path = home.boot_file(deployment, generation)
    known = read_json(path)
    folder = home.rank_folder(deployment, generation, rank)
    status = read_json(folder / "status.json")
    if known is None or status is None:
        raise Refused(f"generation {generation} of {deployment} was not started on this node by sparkyard")
    spec = read_json(folder / "spec.json") or {}
    started = float(known.get("started_unix_s", 0.0))
    phases = {str(name): float(at) - started for name, at in (status.get("phases") or {}).items()}
    measured = {
        "memory_before_bytes": known.get("memory_before_bytes"),
        "memory_available_bytes": status.get("memory_available_bytes"),
        "memory_low_water_bytes": status.get("memory_low_water_bytes"),
        "memory_free_low_water_bytes": status.get("memory_free_low_water_bytes"),
        "weights_bytes": status.get("weights_bytes"),
        "graphs_bytes": graphs_bytes(_head(folder / "engine.log")),
        "kv_tokens": status.get("kv_tokens"),
        "kv_tokens_asked": status.get("kv_tokens_asked"),
        "engram_bytes_read": (status.get("engram") or {}).get("bytes_read"),
        "engine_bytes_read": _engine_read(str(folder / "rank.json")),
        "node_bytes_read": _since(known.get("read_before"), _read_bytes()),
    }
    more = {
        "rank": rank,
        "proven": True,
        "profile": str(args["profile"]),
        "timeline": {name: round(at, 3) for name, at in phases.items() if name not in {"draining", "ended"}},
        "measured": measured,
        "predicted": args.get("predicted") or {},
        "versions": _versions(spec, status),
        "goal": args.get("goal"),
        "recorded_unix_s": time.time(),
    }
    write_json(path, {**known, **more})
    return {"timeline": more["timeline"], "measured": measured}


def records(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Whole boot records, the newest last; of `deployment`, or of all."""
    paths = sorted(home.boots.glob("*.json"), key=lambda path: path.stat().st_mtime)
    found = [record for path in paths[-look.KEPT_RECORDS :] if (record := read_json(path)) is not None]
    wanted = args.get("deployment")
    return {"records": [record for record in found if wanted in (None, record.get("deployment"))]}


def graphs_bytes(log: str) -> int | None:
    """Device memory of the CUDA graphs, all captures together; None when none is reported."""
    found = [float(match.group(1)) for match in GRAPHS.finditer(log)]
    return round(sum(found) * GIB) if found else None


def _engine_read(mark: str) -> dict[str, int] | None:
    """What the rank's processes have read so far: from disks, and through calls, caches included."""
    disk = calls = 0
    pids = process.marked(look.RANK_MARK).get(mark, [])
    for pid in pids:
        fields = dict(re.findall(r"^(\w+): (\d+)$", _text(Path(f"/proc/{pid}/io")), re.MULTILINE))
        disk += int(fields.get("read_bytes", 0))
        calls += int(fields.get("rchar", 0))
    return {"disk": disk, "calls": calls} if pids else None


def _read_bytes() -> dict[str, int]:
    """What this node has read since it started: from its drives, and from NFS servers."""
    disk = nfs = 0
    for row in _text(Path("/proc/diskstats")).splitlines():
        fields = row.split()
        if len(fields) > SECTORS_READ_FIELD and DRIVE.fullmatch(fields[2]):
            disk += int(fields[SECTORS_READ_FIELD]) * SECTOR_BYTES
    for row in re.findall(r"^\s*bytes:\s+([\d ]+)$", _text(Path("/proc/self/mountstats")), re.MULTILINE):
        fields = row.split()
        nfs += int(fields[NFS_SERVER_READ]) if len(fields) > NFS_SERVER_READ else 0
    return {"disk": disk, "nfs": nfs}


def _since(before: Any, now: dict[str, int]) -> dict[str, int] | None:
    """None after a reboot in between, when the counters began anew."""
    if not isinstance(before, dict) or any(now[name] < int(before.get(name, 0)) for name in now):
        return None
    return {name: now[name] - int(before.get(name, 0)) for name in now}


def _versions(spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    driver = re.search(r"(\d+\.\d+(?:\.\d+)?)", _text(DRIVER))
    return {
        "engine_package": str(spec.get("engine", "")),
        "image": str(spec.get("image", "")),
        "spec": status.get("spec"),
        "kernel": platform.release(),
        "driver": driver.group(1) if driver else None,
        "boot_id": process.boot_id(),
        "python": platform.python_version(),
        "cpus": os.cpu_count() or 1,
    }


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LOG_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
