"""What a hung engine is doing, taken before it is killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

DUMP_TIMEOUT_S = 10.0
DUMPED_PROCESSES = 6
DUMP_LINES = 60  # per process


def stacks(processes: Iterable[psutil.Process], beside: Path) -> list[str]:
    """Python stacks of the first processes by py-spy (beside the engine's interpreter or on PATH)."""
    program = shutil.which("py-spy", path=str(beside)) or shutil.which("py-spy")
    if program is None:
        return ["no stacks: py-spy is not installed"]
    lines: list[str] = []
    for process in list(processes)[:DUMPED_PROCESSES]:
        try:
            done = subprocess.run(
                [program, "dump", "--nonblocking", "--pid", str(process.pid)],
                capture_output=True,
                text=True,
                timeout=DUMP_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            lines.append(f"no stack of process {process.pid}: {error}")
            continue
        lines += (done.stdout or done.stderr).splitlines()[:DUMP_LINES]
    return lines
