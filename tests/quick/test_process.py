"""Which processes are a rank's: by the mark in their environment, by their folder when they have lost that."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from node_agent import process

MARK = "SPARKYARD_TEST_MARK"
WAIT_S = 10.0
EXIT = {"x86_64": 60, "aarch64": 93}
"""Number of exit(2), which ends one thread."""
RENAMED = """
import ctypes, time
libc = ctypes.CDLL(None)
with open("/proc/self/stat") as file:
    fields = file.read().rpartition(")")[2].split()
begin, end = int(fields[47]), int(fields[48])  # proc(5): env_start and env_end
ctypes.memset(begin, 0, end - begin - len("KEPT=1") - 1)
print("ready", flush=True)
time.sleep(60)
"""
LEADERLESS = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""


class Started:
    """Programs that print a line once they are what they shall be."""

    def __init__(self) -> None:
        self.stack = ExitStack()

    def __call__(self, folder: Path, program: str, *words: str, **env: str) -> int:
        child = subprocess.Popen(
            [sys.executable, "-c", program, *words], cwd=folder, env=env, stdout=subprocess.PIPE
        )
        self.stack.callback(child.wait)
        self.stack.callback(child.kill)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child.pid


@pytest.fixture
def started() -> Iterator[Started]:
    found = Started()
    with found.stack:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rank's folder, by another name than the kernel's."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    (link / process.MARK_FILE).write_text(json.dumps({"directory": str(link)}))
    return link


def test_a_renamed_process_belongs_to_its_folder_and_a_shell_in_it_does_not(
    started: Started, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mark = str(folder / process.MARK_FILE)
    other = tmp_path_factory.mktemp("other")
    idle = "import time; print('ready', flush=True); time.sleep(60)"
    marked = started(other, idle, **{MARK: mark})
    renamed = started(folder, RENAMED, **{MARK: mark, "KEPT": "1"})
    shell = started(folder, idle, HOME="/")
    stranger = started(other, RENAMED, HOME="/", KEPT="1")
    assert sorted(process.marked(MARK)[mark]) == sorted([marked, renamed])
    assert process.kill_marked(MARK, mark, WAIT_S) == []
    assert [process.start_ticks(pid) is None for pid in (marked, renamed, shell, stranger)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.skipif(platform.machine() not in EXIT, reason="the number of exit(2) is not known here")
def test_a_process_whose_first_thread_has_ended_is_not_gone(started: Started, folder: Path) -> None:
    mark = str(folder / process.MARK_FILE)
    pid = started(folder, LEADERLESS, str(EXIT[platform.machine()]), **{MARK: mark})
    end = time.monotonic() + WAIT_S
    while "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert len(os.listdir(f"/proc/{pid}/task")) > 1
    assert process.start_ticks(pid) is not None
    assert process.marked(MARK)[mark] == [pid]
    assert process.kill_marked(MARK, mark, WAIT_S) == []
    assert process.start_ticks(pid) is None
