"""Two hundred kills of pack at random points."""

from __future__ import annotations

import pytest

from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import write_checkpoint
from tests.engram_kill import kill_and_resume


@pytest.mark.timeout(900)
def test_two_hundred_kills(tmp_path) -> None:
    layout = Layout.build(layer_ids=(1, 14), max_ngram_size=4, heads=8, vocab_size=1600)  # 2 extents a layer
    write_checkpoint(tmp_path / "checkpoint", layout, 1600)
    assert kill_and_resume(tmp_path / "checkpoint", tmp_path, 200, seed=4) >= 100
