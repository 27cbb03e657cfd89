"""Memory, pressure, processor, disk and drives of the node, read from the kernel at every tick."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from node_agent.facts import probes as stored
from node_agent.facts import rails as power
from node_agent.facts.memory import parse_meminfo, parse_pressure
from node_agent.facts.source import DeniedError, Source, UnreadableError
from node_agent.home import Home

SECTOR_READ_MS_FIELD, READS_FIELD = 6, 3
"""Columns of /proc/diskstats (Documentation/admin-guide/iostats.rst): reads completed, milliseconds reading."""
DRIVE = re.compile(r"nvme\d+n\d+|vd[a-z]|sd[a-z]")
DRIVES_MAX = 8
PROBES = stored.PLACE.rpartition("/")[2]
"""Below the node's own folder, where `doctor --deep` leaves its results."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def read(home: Home) -> dict[str, Any]:
    """Memory, processor time and the disk that holds sparkyard's folder."""
    info = parse_meminfo(_text("/proc/meminfo"))
    pressure = parse_pressure(_text("/proc/pressure/memory"))
    space = os.statvfs(home.root if home.root.exists() else "/")
    busy_s, idle_s = _processor_s(_text("/proc/stat"))
    return {
        "memory": {
            "total_bytes": info.get("MemTotal", 0),
            "available_bytes": info.get("MemAvailable", 0),
            "free_bytes": info.get("MemFree", 0),
            "pressure_some": pressure.get("some"),
            "pressure_full": pressure.get("full"),
        },
        "processor": {"cpus": os.cpu_count() or 1, "busy_s": busy_s, "idle_s": idle_s},
        "disk": {
            "total_bytes": space.f_blocks * space.f_frsize,
            "free_bytes": space.f_bavail * space.f_frsize,
        },
    }


def drives() -> list[dict[str, Any]]:
    """Whole drives: reads done and the time they took, since boot."""
    found = []
    for row in _text("/proc/diskstats").splitlines():
        fields = row.split()
        if len(fields) > SECTOR_READ_MS_FIELD and DRIVE.fullmatch(fields[2]):
            found.append(
                {
                    "name": fields[2],
                    "reads": int(fields[READS_FIELD]),
                    "read_s": int(fields[SECTOR_READ_MS_FIELD]) / 1000,
                }
            )
    return found[:DRIVES_MAX]


def rails(source: Source) -> dict[str, float]:
    """Power by rail, watts; empty without the spark_hwmon driver."""
    try:
        found = power.read(source)
    except (DeniedError, UnreadableError):
        return {}
    return dict(found["watts"]) if found else {}


def probes(home: Home) -> dict[str, Any]:
    """What earlier load probes on this node measured: rails in Gb/s and the GPU clock under load."""
    try:
        found = stored.parse(_text(str(home.root / PROBES)) or "{}")
    except UnreadableError:
        found = {}
    measured = [
        {key: row[key] for key in ("unix_s", "netdev", "peer", "gbps")}
        for row in found.get("rdma") or []
        if isinstance(row, dict) and {"unix_s", "netdev", "peer", "gbps"} <= set(row)
    ]
    burn = found.get("burn") or {}
    clocks = sorted(row["sm_mhz"] for row in burn.get("samples") or [] if row.get("sm_mhz"))
    return {"rails": measured[-64:], "busy_mhz": clocks[len(clocks) // 2] if clocks else None}


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(_text("/proc/self/statm").split()[1]) * PAGE_BYTES


def _processor_s(text: str) -> tuple[float, float]:
    """First line of /proc/stat: seconds in work and at rest, all processors together."""
    ticks = [int(field) for field in text.split("\n", 1)[0].split()[1:9]]
    idle = sum(ticks[3:5])
    return (sum(ticks) - idle) / TICKS_PER_S, idle / TICKS_PER_S


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
