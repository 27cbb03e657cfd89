"""Every reader of something that comes from elsewhere, against damaged inputs: understood or refused with words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import TARGETS, fuzz
from tests.hardening.figures import Figures

EXAMPLES = 400


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_reader_understands_or_refuses_with_words(name: str, tmp_path: Path, figures: Figures) -> None:
    figures.add(f"inputs fuzzed: {name}", fuzz(name, tmp_path, EXAMPLES))
