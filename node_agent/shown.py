"""What a serving rank shows of how it serves: its network, its graphs, its store's disk. Read only."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from node_agent import look
from node_agent.files import read_json
from node_agent.home import Home
from node_agent.watch import page

NETWORK = re.compile(r"NET/(IB|Socket)|Using network|cuda graph|NCCL version", re.IGNORECASE)
LINES_MAX = 40
LOG_HEAD_BYTES = 8 << 20
"""The network is chosen when the communicators are made, long before this much is written."""


def read(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Of one rank: the log's lines about network and graphs, the metrics page, and where its packed rows lie."""
    folder = home.rank_folder(args["deployment"], int(args["generation"]), int(args["rank"]))
    spec, status = read_json(folder / "rank.json") or {}, read_json(folder / "status.json") or {}
    port = spec.get("metrics_port")
    metrics = page.Page(0.0).read(("127.0.0.1", port)) if isinstance(port, int) else None
    store = ((spec.get("plugin") or {}).get("engram") or {}).get("store")
    return {
        "lines": _lines(folder / "engine.log"),
        "gauges": (metrics or {}).get("gauges", {}),
        "store": _store(Path(store)) if store else None,
        "phases": status.get("phases") or {},
        "memory_low_water_bytes": status.get("memory_low_water_bytes"),
        "kv_tokens": status.get("kv_tokens"),
        "kv_tokens_asked": status.get("kv_tokens_asked"),
        "rows_read": (status.get("engram") or {}).get("rows_requested"),
        "hcas": _hcas(str((spec.get("env") or {}).get("NCCL_IB_HCA", ""))),
        "bytes_read": (status.get("engram") or {}).get("bytes_read"),
    }


def _hcas(text: str) -> list[str]:
    """NCCL_IB_HCA: `=a:1,b:1`. A list of exclusions (`^`) names none."""
    if text.startswith("^"):
        return []
    return [name.partition(":")[0] for name in text.removeprefix("=").split(",") if name][:64]


def _lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            text = file.read(LOG_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [line[:500] for line in text.splitlines() if NETWORK.search(line)][:LINES_MAX]


def _store(path: Path) -> dict[str, Any]:
    """File system of the store, its block device, and whether that hangs on USB or turns."""
    disk = look.disk(path)
    number = (path if path.exists() else path.parent).stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    try:
        real = os.path.realpath(device)
        base = Path(real) if (Path(real) / "queue").exists() else Path(real).parent
        # a virtual disk says that it turns, whatever lies below it
        said = (base / "queue" / "rotational").read_text(encoding="ascii").strip() == "1"
        rotational = None if "/virtio" in real else said
    except OSError:
        real, rotational = "", None
    return {
        "path": str(path),
        "filesystem": disk["filesystem"],
        "usb": "/usb" in real,
        "rotational": rotational,
        "device": Path(real).name if real and device.exists() else "",
    }
