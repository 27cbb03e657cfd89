"""Listening TCP ports and their owners. Owners of other users' sockets need root; the ports do not."""

from __future__ import annotations

import os
import re
import socket
import struct
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import DeniedError, Source
from node_agent.facts.text import line, lines

LISTEN = "0A"
MAX_LISTENERS = 500
MAX_PROCESSES = 20000


def parse_address(text: str) -> str | None:
    """The hexadecimal address of /proc/net/tcp or tcp6, each 32-bit word in the machine's byte order."""
    try:
        words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
        packed = b"".join(struct.pack("=I", word) for word in words)
        return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    except (ValueError, struct.error, OSError):
        return None


def parse_table(text: str) -> list[dict[str, Any]]:
    """Listening rows of /proc/net/tcp or tcp6: address, port, inode."""
    found = []
    for item in lines(text):
        parts = item.split()
        if len(parts) < 10 or parts[3] != LISTEN or not parts[9].isdecimal():
            continue
        match = re.fullmatch(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):([0-9A-Fa-f]{4})", parts[1])
        address = parse_address(match.group(1)) if match else None
        if match and address:
            found.append({"address": address, "port": int(match.group(2), 16), "inode": int(parts[9])})
    return found[:MAX_LISTENERS]


def owners(source: Source, inodes: set[int]) -> dict[int, tuple[int, str]]:
    """Socket inode → (pid, command), for the processes that this user may look into."""
    found: dict[int, tuple[int, str]] = {}
    if source.origin != "live":
        return found
    for name in source.names("/proc")[:MAX_PROCESSES]:
        if not name.isdecimal():
            continue
        try:
            descriptors = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                link = os.readlink(f"/proc/{name}/fd/{descriptor}")
            except OSError:
                continue
            match = re.fullmatch(r"socket:\[(\d{1,20})\]", link)
            if match and int(match.group(1)) in inodes:
                try:
                    command = line(source.text(f"/proc/{name}/comm")) or ""
                except DeniedError:
                    command = ""
                found[int(match.group(1))] = (int(name), command)
    return found


def read(source: Source) -> list[dict[str, Any]]:
    """One entry for each address and port."""
    rows = parse_table(source.text("/proc/net/tcp") or "") + parse_table(source.text("/proc/net/tcp6") or "")
    known = owners(source, {row["inode"] for row in rows})
    found = []
    for row in rows:
        pid, command = known.get(row["inode"], (None, None))
        found.append({"address": row["address"], "port": row["port"], "pid": pid, "process": command})
    return found


READER = Reader("listeners", read, hardware=False)
