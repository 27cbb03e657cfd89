"""Every reader of what comes from elsewhere, a few damaged inputs each; the hardening suite tries thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import TARGETS, fuzz


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_reader_understands_or_refuses_with_words(name: str, tmp_path: Path) -> None:
    assert fuzz(name, tmp_path, examples=6) >= 6
