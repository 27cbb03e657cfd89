"""A program in the place of the node agent that greets as the agent does and then answers what nobody should believe.

Run as `python -I …pyz` by the real boot program: the words of its own first argument are ignored, what it does stands
in the file `hostile` beside it, `MODE` alone or `MODE` and a text.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from pathlib import Path

CHUNK_BYTES = 1 << 20
LONG_LINE_BYTES = 2 << 30
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b31m\u202eback\x7f"
"""Window title, clear screen, colour, C1 introducer, reading direction, DEL."""


def program(folder: Path, mode: str, text: str = "") -> str:
    """Put the program into ``folder``; the `python` of a cluster file that runs it."""
    (folder / "hostile").write_text(json.dumps({"mode": mode, "text": text}))
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {folder}\n")
    path.chmod(0o755)
    return str(path)


def main() -> None:
    order = json.loads((Path(sys.argv[1]) / "hostile").read_text())
    hello = json.loads(os.environ["SPARKYARD_AGENT_HELLO"])
    digest = "0" * 64 if order["mode"] == "other" else hello["sha256"]
    say({"hello": {"agent": digest, "pid": os.getpid(), "python": "3"}})
    requests = iter(sys.stdin.buffer.readline, b"")
    number = json.loads(next(requests))["id"]
    if order["mode"] == "escape":
        sys.stderr.write(f"{ESCAPES}\n")
        while True:
            error = {"kind": "failed", "message": ESCAPES, "evidence": [ESCAPES]}
            say({"id": number, "ok": False, "error": error})
            number = json.loads(next(requests, b'{"id": 0}'))["id"] or os._exit(0)
    threading.Thread(target=gone_with_the_channel, args=(requests,), daemon=True).start()
    match order["mode"]:
        case "long":
            sys.stdout.buffer.write(b'{"id": 1, "ok": true, "value": {"x": "')
            for _ in range(LONG_LINE_BYTES // CHUNK_BYTES):
                sys.stdout.buffer.write(b"x" * CHUNK_BYTES)
            sys.stdout.buffer.write(b'"}}\n')
        case "flood":
            while True:
                say({"id": number, "progress": {"x": "x" * CHUNK_BYTES}})
        case "raw":
            sys.stdout.buffer.write(
                order["text"].encode("utf-8", "surrogatepass").replace(b"NUMBER", b"%d" % number)
            )
    sys.stdout.flush()
    threading.Event().wait(30)


def say(message: dict[str, object]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.flush()


def gone_with_the_channel(requests: object) -> None:
    for _ in requests:  # type: ignore[attr-defined]
        pass
    os._exit(0)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
