"""Who this machine is: names, identity, account."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import platform
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import line, number

COMMAND_TIMEOUT_S = 3.0
HOST_KEYS = ("ed25519", "ecdsa", "rsa")


def fingerprint(public_key: str | None) -> str | None:
    """SHA-256 fingerprint of an OpenSSH public key line, as ssh-keygen prints it; None when it is none."""
    parts = (public_key or "").split()
    if len(parts) < 2:
        return None
    try:
        digest = hashlib.sha256(base64.b64decode(parts[1], validate=True)).digest()
    except (binascii.Error, ValueError):
        return None
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def parse_groups(text: str) -> list[str]:
    """Output of `id -nG`."""
    return sorted(set(text.split()))


def read(source: Source) -> dict[str, Any]:
    """Everything an ordinary user may know about the machine's identity."""
    groups = source.run("id", "-nG", timeout_s=COMMAND_TIMEOUT_S)
    user = source.run("id", "-un", timeout_s=COMMAND_TIMEOUT_S)
    keys = [fingerprint(source.text(f"/etc/ssh/ssh_host_{kind}_key.pub")) for kind in HOST_KEYS]
    uptime = (source.text("/proc/uptime") or "").split()
    cpus = (source.text("/proc/cpuinfo") or "").count("\nprocessor") + 1
    return {
        "hostname": line(source.text("/proc/sys/kernel/hostname")) or "",
        "machine_id": line(source.text("/etc/machine-id")),
        "host_keys": [key for key in keys if key],
        "user": line(user.out) if user else None,
        "groups": parse_groups(groups.out) if groups and groups.status == 0 else [],
        "uptime_s": number(uptime[0]) if uptime else None,
        "boot_id": line(source.text("/proc/sys/kernel/random/boot_id")),
        "load_1min": number((source.text("/proc/loadavg") or "").partition(" ")[0]),
        "cpus": cpus if source.origin == "recorded" else os.cpu_count(),
        "python": platform.python_version(),
    }


READER = Reader("host", read, hardware=False)
