"""Long prefills and idle gaps, with the shipped bounds: nothing is restarted."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from orchestrator.watch.keep import LOOK_EVERY_S
from orchestrator.watch.policy import Policy
from tests.guarded import Watched, serves
from tests.realgang import COMES_BACK_S, RealLab

SOAK_S = float(os.environ.get("SPARKYARD_SOAK_S", "60"))
"""1200 for the full length."""
LONG_WORDS = 720
"""1900 tokens of the 2048 that the lab's model has positions for."""
TOGETHER = 3
"""Prompts of this length that are read at one time: 90 chunks."""
GAPS_S = (1.0, 7.0, 25.0)


@pytest.mark.slow
def test_nothing_is_restarted_in_a_soak_of_long_prefills_and_idle_gaps(
    serving: RealLab, tmp_path: Path
) -> None:
    policy = replace(Policy(), canary_pace_s=10)
    watch = Watched(serving, tmp_path, policy, every_s=LOOK_EVERY_S, bound_s=SOAK_S + COMES_BACK_S)
    generation = serving.generation()
    done: list[int] = []
    prompt_tokens = 0

    async def work() -> None:
        nonlocal prompt_tokens
        end = time.monotonic() + SOAK_S
        while time.monotonic() < end:
            asked = (asyncio.to_thread(serving.generate, LONG_WORDS, 16) for _ in range(TOGETHER))
            for answer in await asyncio.gather(*asked):
                assert answer.status_code == httpx.codes.OK, answer.text
                done.append(answer.status_code)
                prompt_tokens += answer.json().get("usage", {}).get("prompt_tokens", 0)
            await asyncio.sleep(GAPS_S[len(done) // TOGETHER % len(GAPS_S)])

    watch.run(lambda: True, then=work)
    canaries = watch.canaries()
    print(
        f"{len(done)} prompts, {prompt_tokens} tokens, {len(canaries)} canaries in {SOAK_S:.0f} s: {watch.said()}"
    )
    assert prompt_tokens / len(done) > LONG_WORDS
    assert any(canary.ok for canary in canaries)
    assert watch.restarts() == []
    assert not any("hung" in text or "dead" in text for text in watch.said())
    assert serving.generation() == generation
    assert serves(serving)
