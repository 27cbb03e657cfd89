"""A program beside the ranks that takes the host's memory: the guards end the ranks, the host lives."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psutil

from tests import hog
from tests.realgang import BOUNDS, RealLab, restarted_once, watched

HOG_S = 120.0


def test_a_memory_hog(serving: RealLab, tmp_path: Path) -> None:
    """All ranks share one host here, so it is the host's memory and no node of its own that is named."""
    generation = serving.generation()
    floors = [
        json.loads((serving.rank_folder(generation, rank) / "rank.json").read_text())["memory_floor_bytes"]
        for rank in range(3)
    ]
    watch = watched(serving, tmp_path)

    async def take() -> None:
        argv = [sys.executable, hog.__file__, str(max(floors))]
        done = await asyncio.to_thread(
            subprocess.run, argv, capture_output=True, text=True, check=False, timeout=HOG_S
        )
        assert done.returncode == 0, done.stderr
        watch.happened_s += json.loads(done.stdout)["below_after_s"]

    restart = restarted_once(
        watch,
        take,
        verdict="dead rank: memory floor on the shared host: ",
        within_s=BOUNDS.dead_s,
        cause="memory_floor",
        ranks=[0, 1, 2],  # a rank whose peers die within a quarter of a second may follow them first
    )
    assert "below the floor of" in restart.why
    assert psutil.virtual_memory().available > max(floors)
