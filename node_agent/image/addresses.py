"""IPv4 addresses of this node with the speed of their links, for the choice of the ways between nodes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0
SKIPPED = ("lo", "docker", "veth", "br-", "virbr")
"""Beginnings of names of interfaces that never lead to another node."""


def parse(text: str) -> list[tuple[str, str, int]]:
    """`ip -json -4 address show` as (interface, address/prefix, mtu) of links that are up. ValueError for others."""
    found = []
    for link in json.loads(text or "[]"):
        name = str(link.get("ifname", ""))
        if name.startswith(SKIPPED) or "UP" not in link.get("flags", []) or link.get("operstate") == "DOWN":
            continue
        found += [
            (name, f"{entry['local']}/{entry['prefixlen']}", int(link.get("mtu", 0)))
            for entry in link.get("addr_info", [])
            if entry.get("family") == "inet" and entry.get("scope") == "global"
        ]
    return found


def facts() -> list[dict[str, Any]]:
    """What the kernel says; empty where the tool is missing."""
    try:
        done = subprocess.run(
            ["ip", "-json", "-4", "address", "show"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        links = parse(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return []
    return [
        {"interface": name, "address": address, "mtu": mtu, "speed_mbit": _speed(name)}
        for name, address, mtu in links
    ]


def _speed(interface: str) -> int:
    """Mbit/s as the kernel shows it; 0 where it does not know."""
    try:
        return max(0, int(Path(f"/sys/class/net/{interface}/speed").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 0
