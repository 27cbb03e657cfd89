"""Packs are killed at random moments and started again, until the bytes are whole."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

from sparkyard_engine.engram import pack
from sparkyard_engine.engram.packjob import LOCK_NAME

FINISH_EVERY = 10  # kills between two runs to the end


def child_pack(argv: list[str]) -> int:
    """Starts pack in a forked child; its process id. The child runs nothing of the test after it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = pack.main(argv)
        finally:
            os._exit(code)
    return child


def store_bytes(store: Path) -> dict[str, bytes]:
    """Every file of a store but the lock."""
    return {path.name: path.read_bytes() for path in store.iterdir() if path.name != LOCK_NAME}


def kill_and_resume(checkpoint: Path, folder: Path, kills: int, seed: int) -> int:
    """Kills `kills` packs of `checkpoint`; every tenth is followed by one that ends. Returns how many kills found a
    pack at work. Asserts that the result is the same as that of a pack nobody disturbed.
    """
    base = ["--checkpoint", str(checkpoint), "--revision", "r1", "--tp", "1", "--rank", "0", "--workers", "2"]
    started = time.monotonic()
    assert (
        os.waitstatus_to_exitcode(os.waitpid(child_pack([*base, "--output", str(folder / "whole")]), 0)[1])
        == 0
    )
    whole_run_s = time.monotonic() - started
    whole = store_bytes(folder / "whole")
    chance, hit, store = random.Random(seed), 0, folder / "store"  # noqa: S311
    for number in range(1, kills + 1):
        child = child_pack([*base, "--output", str(store)])
        time.sleep(chance.random() * whole_run_s)
        os.kill(child, signal.SIGKILL)
        hit += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        if (store / "manifest.json").exists():
            assert store_bytes(store) == whole  # a store that says it is whole is whole
            shutil.rmtree(store)
        elif number % FINISH_EVERY == 0:
            child = child_pack([*base, "--output", str(store)])
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert store_bytes(store) == whole
            shutil.rmtree(store)
    shutil.rmtree(store, ignore_errors=True)
    return hit
