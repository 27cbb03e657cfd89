"""Reads that hang: opening a named pipe that nobody writes to waits in the kernel, as a file of a dead server does."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from node_agent.bounded import HungError, bounded

FOREVER_S = 60.0


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def let_go(pipe: Path) -> None:
    """Whoever waits for the pipe reads that it is empty."""
    os.close(os.open(pipe, os.O_WRONLY))


def test_what_hangs_is_left_behind_and_not_asked_a_second_time(pipe: Path) -> None:
    key = ("read", str(pipe))
    with pytest.raises(HungError):
        bounded(key, pipe.read_bytes, 0.2)
    with pytest.raises(HungError):
        bounded(key, partial(pytest.fail, "a second read was sent after the first"), 0.1)
    let_go(pipe)
    assert bounded(key, lambda: b"", FOREVER_S) == b""  # joins the first, or is the next
    assert bounded(key, lambda: b"again", FOREVER_S) == b"again"


def test_another_mount_at_the_same_place_is_asked_anew(pipe: Path) -> None:
    with pytest.raises(HungError):
        bounded(("read", "17"), pipe.read_bytes, 0.1)
    assert bounded(("read", "18"), lambda: 1, FOREVER_S) == 1
    let_go(pipe)


def test_what_the_read_raises_is_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bounded(("missing",), (tmp_path / "missing").read_bytes, FOREVER_S)
