"""Signs of life of a deployment's ranks on this node, read in one go: processes, guards, memory, rank 0's own figures.

Read from /proc and our own files; the engine is asked for its readiness and its metrics page, which its API process
answers by itself. Nothing here goes through the ranks: only a canary does.
"""

from __future__ import annotations

import http.client
import os
import time
from pathlib import Path
from typing import Any

from node_agent import lease, look, process
from node_agent.actions import containers
from node_agent.facts.memory import parse_pressure
from node_agent.files import read_json
from node_agent.home import Home
from node_agent.watch import page

READY_TIMEOUT_S = 2.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
OWN_REASONS = ("memory_floor", "plugin_missing", "hang", "spawn_failed")
"""The guard ended the rank by itself: a cause, never the consequence of a peer's end (docs/formats.md)."""


def read(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Everything about the ranks of ``deployment`` on this node."""
    deployment = str(args["deployment"])
    found = ranks(home, deployment)
    pressure = parse_pressure(_text(Path("/proc/pressure/memory")))
    return {
        "now_unix_s": time.time(),
        "monotonic_s": time.monotonic(),
        "boot_id": process.boot_id(),
        "available_bytes": look.memory()["available_bytes"],
        "pressure_full": pressure.get("full"),
        "desired": read_json(home.desired),
        "lease": lease.facts(home),
        "boots": [
            {
                "generation": int(boot["generation"]),
                "proven": bool(boot.get("canary") and boot.get("smoke")),
            }
            for boot in look.boots(home)
            if boot.get("deployment") == deployment
        ],
        "ranks": found,
        "engine": _engine(home, deployment, found),
    }


def ranks(home: Home, deployment: str) -> list[dict[str, Any]]:
    """Every rank of the deployment that has a folder here; the dead ones too, for why they ended."""
    living = process.marked(look.RANK_MARK)
    contained: set[tuple[str, int, int]] | None = None
    found = []
    for folder in home.ranks.iterdir() if home.ranks.is_dir() else ():
        spec = read_json(folder / "spec.json")
        if spec is None or spec["body"]["deployment"] != deployment:
            continue
        status = read_json(folder / "status.json") or {}
        ended = status.get("ended") or {}
        if spec.get("image"):
            contained = contained if contained is not None else look.contained_ranks(home)
            # the processes of a container belong to another user: its guard's status says how they are
            guarded, pids = containers.key(spec["body"]) in contained, []
        else:
            guarded = process.alive(folder / "pid.json") is not None
            pids = living.get(str(folder / "rank.json"), [])
        states = [_stat(pid) for pid in pids]
        reason = ""
        if not guarded:
            reason = (
                f"{ended.get('reason', 'lost')}: {ended.get('detail', 'the guard is gone without a word')}"
            )
        found.append(
            {
                "generation": spec["body"]["generation"],
                "rank": spec["body"]["rank"],
                "guarded": guarded,
                "processes": len(pids),
                "stopped": sum(1 for state, _ in states if state in {"T", "t"}),
                "processor_s": sum(used for _, used in states),
                "phase": str(status.get("phase", "starting")) if guarded else "ended",
                "ended": reason[:2000],
                "ended_by_guard": not guarded and ended.get("reason") in OWN_REASONS,
                "updated_unix_s": status.get("updated_unix_s"),
                "last_log_unix_s": status.get("last_log_unix_s"),
                "floor_bytes": (read_json(folder / "rank.json") or {}).get("memory_floor_bytes"),
            }
        )
    found.sort(key=lambda rank: rank["generation"], reverse=True)
    return found[: look.KEPT_RECORDS]


def _stat(pid: int) -> tuple[str, float]:
    """State letter and processor seconds of a process; nothing for one that is gone by now."""
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    if len(fields) < 13:
        return "X", 0.0
    # proc(5): fields 3 (state), 14 and 15 (utime, stime); the first here is field 3
    return fields[0], (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _engine(home: Home, deployment: str, ranks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Rank 0's readiness and metrics, if it lives here."""
    head = next((rank for rank in ranks if rank["rank"] == 0 and rank["guarded"]), None)
    if head is None:
        return None
    spec = read_json(home.rank_folder(deployment, head["generation"], 0) / "rank.json") or {}
    port = spec.get("api_port")
    if not isinstance(port, int) or head["phase"] != "ready":
        return None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        ready = connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        ready = False
    finally:
        connection.close()
    return {"ready": ready, **(page.Page(0.0).read(("127.0.0.1", port)) or {})}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
