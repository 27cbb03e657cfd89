"""Ranks as their guards describe them: the status file is rewritten every second and read here, nothing is asked."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from node_agent import process
from node_agent.files import read_json
from node_agent.home import Home
from node_agent.records import inner, number, text

FOLDER = re.compile(r"(?P<deployment>.+)\.g(?P<generation>\d{1,9})\.r(?P<rank>\d{1,4})")
FRESH_S = 10.0
"""The guard rewrites its status every second; older than this, nobody writes it any more."""
RANKS_MAX = 8
KEPT = (
    "phase",
    "phases",
    "memory_low_water_bytes",
    "memory_free_low_water_bytes",
    "weights_bytes",
    "kv_tokens",
    "last_log_unix_s",
    "updated_unix_s",
)
SUMS = (
    "batches",
    "rows_requested",
    "rows_unique",
    "cache_hits",
    "pages_read",
    "bytes_read",
    "errors",
    "read_s",
)
"""Counters of one layer's Engram reader; whatever else its file says is not for the views."""


def read(home: Home) -> list[dict[str, Any]]:
    """The newest generation of every deployment that has ranks here."""
    newest: dict[str, int] = {}
    found = []
    for path in home.ranks.iterdir() if home.ranks.is_dir() else ():
        if match := FOLDER.fullmatch(path.name):
            deployment, generation = match["deployment"], int(match["generation"])
            newest[deployment] = max(newest.get(deployment, 0), generation)
            found.append((deployment, generation, int(match["rank"]), path))
    return [
        _rank(deployment, generation, rank, path)
        for deployment, generation, rank, path in sorted(found)
        if generation == newest[deployment]
    ][-RANKS_MAX:]


def _rank(deployment: str, generation: int, rank: int, folder: Path) -> dict[str, Any]:
    status = read_json(folder / "status.json") or {}
    alive = _alive(folder, status)
    ended = inner(status, "ended")
    reason = ""
    if not alive:
        reason = (
            f"{text(ended, 'reason', 'lost')}: {text(ended, 'detail', 'the guard is gone without a word')}"
        )
    return {
        "deployment": deployment,
        "generation": generation,
        "rank": rank,
        **{key: status.get(key) for key in KEPT},
        "engram": _counters(status.get("engram")),
        "alive": alive,
        "phase": text(status, "phase", "starting") if alive else "ended",
        "ended": reason[:500],
        "memory_floor_bytes": (read_json(folder / "rank.json") or {}).get("memory_floor_bytes"),
    }


def _counters(engram: Any) -> dict[str, Any] | None:
    """The rank's readers together: the plug-in writes one entry a layer. None until all of them have counted."""
    try:
        layers = list(engram["layers"].values()) if "layers" in engram else [engram]
        bounds = layers[0]["latency_bounds_us"]
        if any(layer["latency_bounds_us"] != bounds for layer in layers):
            return None
        return {
            **{key: sum(layer[key] for layer in layers) for key in SUMS},
            "latency_bounds_us": bounds,
            "latency": [sum(counts) for counts in zip(*(layer["latency"] for layer in layers), strict=True)],
        }
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        return None


def _alive(folder: Path, status: dict[str, Any]) -> bool:
    """By process where one is recorded; otherwise (a container) by the guard's own sign of life."""
    if (folder / "pid.json").exists():
        return process.alive(folder / "pid.json") is not None
    return not status.get("ended") and time.time() - (number(status, "updated_unix_s") or 0.0) < FRESH_S


def api(home: Home, here: list[dict[str, Any]]) -> tuple[str, int] | None:
    """Address and port of rank 0's metrics page, if rank 0 lives here and is ready."""
    for rank in here:
        if rank["rank"] == 0 and rank["alive"] and rank["phase"] == "ready":
            folder = home.rank_folder(rank["deployment"], rank["generation"], 0)
            spec = read_json(folder / "rank.json") or {}
            argv = [str(word) for word in spec.get("argv") or []]
            listen = argv[argv.index("--host") + 1] if "--host" in argv[:-1] else "127.0.0.1"
            if isinstance(spec.get("api_port"), int):
                return ("127.0.0.1" if listen in {"0.0.0.0", "::"} else listen, spec["api_port"])  # noqa: S104
    return None
