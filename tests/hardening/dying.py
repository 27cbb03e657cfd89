"""Ends a Python program as SIGKILL would, right before its n-th operation on a file, a folder or a channel.

`sys.setprofile` sees every call of a built-in function in every thread: nothing of the program is replaced. What is
counted are the calls that change what others can see; 0 counts and ends nothing. The log has one line an operation.

As a program, in the place of a node's `python`:  dying.py NUMBER LOG -I AGENT.pyz
"""

from __future__ import annotations

import io
import itertools
import os
import sys
import threading
from pathlib import Path
from typing import Any

OPERATIONS = {
    os.replace: "rename",
    os.rename: "rename",
    os.fsync: "fsync",
    os.write: "write",
    os.pwrite: "write",
    os.pwritev: "write",
    os.mkdir: "mkdir",
    os.unlink: "unlink",
    os.remove: "unlink",
    os.rmdir: "rmdir",
    os.symlink: "symlink",
    os.truncate: "truncate",
    os.ftruncate: "truncate",
    os.posix_fallocate: "allocate",
}
FLUSHED = (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
"""What is written to these is seen by others when it is flushed."""
EXIT_CODE = 137
"""As a shell tells SIGKILL."""


def die_at(number: int, log: Path) -> None:
    """Count from now on, in this thread and in all that it starts; end before operation ``number``."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    counter = itertools.count(1)

    def seen(_: Any, event: str, called: Any) -> None:
        if event != "c_call":
            return
        name = OPERATIONS.get(called) if type(called) is _BUILTIN else None
        if name is None:
            if getattr(called, "__name__", "") != "flush" or not isinstance(called.__self__, FLUSHED):
                return
            name = "flush"
        if next(counter) == number:
            os._exit(EXIT_CODE)
        os.write(handle, name.encode() + b"\n")

    threading.setprofile(seen)
    sys.setprofile(seen)


_BUILTIN = type(os.fsync)


def operations(log: Path) -> list[str]:
    """Those that were made, in order."""
    return log.read_text().split() if log.exists() else []


def main() -> int:
    number, log, _, program, *words = sys.argv[1:]
    sys.argv = [program, *words]
    sys.path.insert(0, program)
    from node_agent.__main__ import main as agent

    die_at(int(number), Path(log))
    return agent()


if __name__ == "__main__":
    sys.exit(main())
