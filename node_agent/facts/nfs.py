"""NFS exports and mounts as the kernel has them, whatever fstab says."""

from __future__ import annotations

import re
from typing import Any

from node_agent.facts.disks import MOUNTS, parse_mounts
from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import lines

EXPORTS = "/var/lib/nfs/etab"
MAX_ROWS = 100


def parse_exports(text: str) -> list[dict[str, Any]]:
    """Lines of etab: `/path client(options)`."""
    found = []
    for item in lines(text):
        match = re.fullmatch(r"(/\S{0,1000})\s+(\S{1,200})\((\S{0,500})\)", item.strip())
        if match:
            found.append(
                {"path": match.group(1), "client": match.group(2), "options": match.group(3).split(",")}
            )
    return found[:MAX_ROWS]


def read(source: Source) -> dict[str, Any]:
    """Never touches a mounted path: a dead server would hang the reader."""
    mounts = []
    for mount in parse_mounts(source.text(MOUNTS) or ""):
        if mount["type"] not in ("nfs", "nfs4"):
            continue
        options = dict(option.partition("=")[::2] for option in mount["options"])
        server, _, export = mount["device"].partition(":/")
        mounts.append(
            {
                "path": mount["path"],
                "server": options.get("addr") or server,
                "export": "/" + export,
                "protocol": options.get("proto"),
                "version": options.get("vers"),
                "connections": int(options["nconnect"]) if options.get("nconnect", "").isdecimal() else 1,
                "read_bytes": int(options["rsize"]) if options.get("rsize", "").isdecimal() else None,
                "hard": "soft" not in options and "softerr" not in options,
                "read_only": "ro" in options,
            }
        )
    return {"mounts": mounts[:MAX_ROWS], "exports": parse_exports(source.text(EXPORTS) or "")}


READER = Reader("nfs", read, hardware=False)
