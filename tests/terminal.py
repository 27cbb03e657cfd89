"""A real terminal for tests: tmux with a given size, and what it shows."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def shown(
    argv: Sequence[str],
    size: tuple[int, int],
    done: Callable[[str], bool],
    timeout_s: float = 180.0,
    keys: Sequence[str] = (),
) -> str:
    """The screen once `done` says so, or at the end of the time; `keys` are pressed before that."""
    tmux = [
        "tmux",
        "-L",
        f"sparkyard-{os.getpid()}-{size[0]}x{size[1]}-{time.monotonic_ns()}",
        "-f",
        "/dev/null",
    ]
    command = " ".join(
        ["env", "-u", "LINES", "-u", "COLUMNS", "TERM=xterm-256color", *(shlex.quote(word) for word in argv)]
    )
    start = [*tmux, "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), command]
    start += [";", "set", "-g", "status", "off"]  # its line is the program's
    subprocess.run(start, cwd=ROOT, check=True)
    try:
        end, text = time.monotonic() + timeout_s, ""
        waiting = list(keys)
        while time.monotonic() < end and not done(text):
            time.sleep(1)
            text = subprocess.run(
                [*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True
            ).stdout
            if waiting and text.strip():
                subprocess.run([*tmux, "send-keys", waiting.pop(0)], check=True)
        return text
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
