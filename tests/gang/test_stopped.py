"""A rank whose process is stopped stops all others: it is named, and the gang comes back once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.realgang import BOUNDS, RealLab, restarted_once, scheduler, watched

pytestmark = pytest.mark.unproven


def test_a_rank_stopped_while_idle(serving: RealLab, tmp_path: Path) -> None:
    victim = scheduler(serving, 1)
    restarted_once(
        watched(serving, tmp_path),
        victim.suspend,
        verdict="hung: spark-2: 1 of",
        within_s=BOUNDS.stopped_s,
        cause="stopped",
        ranks=[1],
    )


def test_a_rank_stopped_while_generating(serving: RealLab, tmp_path: Path) -> None:
    victim = scheduler(serving, 2)
    watch = watched(serving, tmp_path)
    lost: list[str] = []

    def ask() -> None:
        """A request that will not be answered: its gang is stopped."""
        try:
            lost.append(str(serving.generate(30, 1500).status_code))
        except httpx.HTTPError as error:
            lost.append(type(error).__name__)

    async def stop_in_the_middle() -> None:
        asking = asyncio.create_task(asyncio.to_thread(ask))
        await asyncio.sleep(3)
        watch.mark()
        victim.suspend()
        await asyncio.wait({asking}, timeout=0.1)
        assert lost == [], "it was still in work"

    restarted_once(
        watch,
        stop_in_the_middle,
        verdict="hung: spark-3: 1 of",
        within_s=BOUNDS.stopped_s,
        cause="stopped",
        ranks=[2],
    )
    assert lost
    assert lost != ["200"]
