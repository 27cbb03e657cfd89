"""A key of the watch's own in this account's authorized_keys: a command, and nothing else that SSH offers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from node_agent.files import write_bytes
from node_agent.wire import Refused

FILE_MAX_BYTES = 1 << 20
KEY = re.compile(r"^ssh-ed25519 [A-Za-z0-9+/]{60,100}={0,2}$")
NAME = re.compile(r"^[a-z0-9][a-z0-9.-]{0,62}$")


def line(key: str, deployment: str) -> str:
    """`restrict`: no terminal, no forwarding of ports, agent or X11, no file of the user's own (sshd(8))."""
    if not KEY.match(key) or not NAME.match(deployment):
        raise Refused("authorize: not an ed25519 public key, or not the name of a deployment")
    return f"restrict {key} sparkyard-monitor-{deployment}"


def add(args: dict[str, Any], home: Path) -> dict[str, Any]:
    """Put `key` for the watch of `deployment` in place of its earlier one. All other lines stay as they are."""
    wanted = line(str(args["key"]), str(args["deployment"]))
    path = home / ".ssh" / "authorized_keys"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        known = path.read_bytes() if path.exists() else b""
        if len(known) > FILE_MAX_BYTES:
            raise Refused(f"{path}: over {FILE_MAX_BYTES:,} bytes")
        lines = known.splitlines()
        if wanted.encode() in lines:
            return {"changed": False, "path": str(path)}
        mark = wanted.rpartition(" ")[2].encode()
        kept = [
            entry for entry in lines if not (entry.startswith(b"restrict ") and entry.endswith(b" " + mark))
        ]
        write_bytes(path, b"\n".join([*kept, wanted.encode()]) + b"\n")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    return {"changed": True, "path": str(path)}
