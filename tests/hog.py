"""Takes memory until less than FLOOR bytes are available, keeps it for a moment, and gives it back.

Usage: python tests/hog.py FLOOR. Prints `{"took_bytes", "below_after_s"}`. Exit: 0 it got below, 1 it did not.
Or: python tests/hog.py --keep BYTES. So many bytes are available to the host, whatever others take and give back,
until standard input ends. The kernel's OOM killer would take this program first.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

import psutil

PIECE_BYTES = 64 << 20
LEAST_BYTES = 1 << 30
"""So much is left to the host whatever the floor is."""
HOLD_S = 1.5
"""The guards look four times a second."""
KEEP_EVERY_S = 0.2


def main() -> int:
    """Take, hold, let go."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    return keep(int(sys.argv[2])) if sys.argv[1] == "--keep" else pass_below(int(sys.argv[1]))


def keep(wanted_bytes: int) -> int:
    """Take and give back until the end of standard input."""
    held: list[bytes] = []
    while not select.select([sys.stdin], [], [], KEEP_EVERY_S)[0]:
        while psutil.virtual_memory().available > wanted_bytes + PIECE_BYTES:
            held.append(b"\1" * PIECE_BYTES)
        while held and psutil.virtual_memory().available < wanted_bytes - PIECE_BYTES:
            held.pop()
    return 0


def pass_below(floor: int) -> int:
    """Take until less than ``floor`` is available, wait, and tell."""
    begin, held = time.monotonic(), []
    while (available := psutil.virtual_memory().available) >= floor:
        if available < LEAST_BYTES + PIECE_BYTES:
            sys.stderr.write(f"{available} B are available, the floor is {floor} B\n")
            return 1
        held.append(b"\1" * PIECE_BYTES)
    below_after_s = time.monotonic() - begin
    time.sleep(HOLD_S)
    print(json.dumps({"took_bytes": len(held) * PIECE_BYTES, "below_after_s": below_after_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
