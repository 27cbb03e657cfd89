"""What a rank and its node leave behind, for a folder of evidence: read before anything is stopped or removed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from node_agent import look
from node_agent.files import read_json, tail
from node_agent.home import Home
from node_agent.watch import pulse

LOG_LINES = 4000
LOG_BYTES = 1 << 20
KERNEL_LINES = 400
KERNEL_TIMEOUT_S = 5.0
FILES = ("engine.log", "guard.log", "guard.out")
DOCUMENTS = ("status.json", "rank.json", "proof.json", "engram.json")


def read(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Last lines of the logs, the documents of the newest start of each rank of `deployment`, the kernel."""
    deployment = str(args["deployment"])
    folders: dict[int, tuple[int, Path]] = {}
    for folder in home.ranks.iterdir() if home.ranks.is_dir() else ():
        spec = read_json(folder / "spec.json")
        if spec is not None and spec["body"]["deployment"] == deployment:
            rank, generation = int(spec["body"]["rank"]), int(spec["body"]["generation"])
            folders[rank] = max(
                folders.get(rank, (-1, folder)), (generation, folder), key=lambda item: item[0]
            )
    signs = {(sign["generation"], sign["rank"]): sign for sign in pulse.ranks(home, deployment)}
    return {
        "ranks": [
            {
                "rank": rank,
                "generation": generation,
                "logs": {name: tail(folder / name, LOG_LINES, LOG_BYTES) for name in FILES},
                "documents": {name: read_json(folder / name) for name in DOCUMENTS}
                | {"pulse.json": signs.get((generation, rank))},
            }
            for rank, (generation, folder) in sorted(folders.items())
        ],
        "memory": look.memory(),
        "pressure": _text("/proc/pressure/memory"),
        "kernel": _kernel(),
    }


def _kernel() -> list[str]:
    """The kernel's last lines, where this user may read them."""
    try:
        done = subprocess.run(
            ["dmesg", "--time-format", "iso"],
            capture_output=True,
            timeout=KERNEL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return [line[:1000] for line in lines[-KERNEL_LINES:]]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
