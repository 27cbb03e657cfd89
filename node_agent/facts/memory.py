"""Memory: CPU and GPU share one pool on GB10, so /proc/meminfo is the GPU's memory too."""

from __future__ import annotations

import re
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source, UnreadableError
from node_agent.facts.text import lines, number

ORDERS = 11  # buddyinfo columns of a kernel with 4 KiB pages: orders 0 to 10
MAX_COUNT = 2**62


def parse_meminfo(text: str) -> dict[str, int]:
    """Name → bytes. Lines that are no `Name: number [kB]` are left out, never guessed."""
    found = {}
    for item in lines(text):
        match = re.fullmatch(r"\s*([A-Za-z0-9_()]{1,40}):\s+(\d{1,18})(\s+kB)?", item)
        if match:
            found[match.group(1)] = int(match.group(2)) * (1024 if match.group(3) else 1)
    return found


def parse_pressure(text: str) -> dict[str, float]:
    """/proc/pressure/memory: `full avg10=0.00 …` → {"full": 0.0, "some": …}, in percent."""
    found = {}
    for item in lines(text):
        match = re.match(r"(some|full) avg10=(\d{1,4}(?:\.\d{1,4})?) ", item)
        if match:
            found[match.group(1)] = float(match.group(2))
    return found


def parse_buddyinfo(text: str) -> list[int] | None:
    """Free blocks of each order, summed over the zones; None when no line can be understood."""
    total: list[int] = []
    for item in lines(text):
        match = re.fullmatch(r"Node\s+\d+,\s+zone\s+\S+\s+((?:\d{1,15}\s*)+)", item)
        if not match:
            continue
        blocks = [int(part) for part in match.group(1).split()]
        if len(blocks) > 2 * ORDERS:
            continue
        total += [0] * (len(blocks) - len(total))
        for order, count in enumerate(blocks):
            total[order] += count
    return total or None


def read(source: Source) -> dict[str, Any]:
    """Raises UnreadableError when /proc/meminfo lacks its two main lines."""
    info = parse_meminfo(source.text("/proc/meminfo") or "")
    if "MemTotal" not in info or "MemAvailable" not in info:
        raise UnreadableError("/proc/meminfo: no MemTotal or no MemAvailable")
    pressure = parse_pressure(source.text("/proc/pressure/memory") or "")
    return {
        "total_bytes": info["MemTotal"],
        "available_bytes": info["MemAvailable"],
        "free_bytes": info.get("MemFree", 0),
        "cached_bytes": info.get("Cached", 0),
        "shared_bytes": info.get("Shmem", 0),
        "swap_total_bytes": info.get("SwapTotal", 0),
        "swap_free_bytes": info.get("SwapFree", 0),
        "cma_total_bytes": info.get("CmaTotal"),
        "cma_free_bytes": info.get("CmaFree"),
        "pressure_full_avg10": pressure.get("full"),
        "pressure_some_avg10": pressure.get("some"),
        "buddy_blocks": parse_buddyinfo(source.text("/proc/buddyinfo") or ""),
        "uptime_s": number((source.text("/proc/uptime") or "").partition(" ")[0]),
    }


READER = Reader("memory", read, hardware=False)
