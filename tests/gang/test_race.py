"""Verbs against the monitor over 200 seeds of simulated nodes."""

from __future__ import annotations

import pytest

from tests.race import hold

SEEDS, BLOCKS = 200, 10


@pytest.mark.parametrize("block", range(BLOCKS))
def test_stop_stays_stopped_and_there_is_one_gang(block: int) -> None:
    hold(range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS))
