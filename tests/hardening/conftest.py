"""Figures for every test of the suite; the first process of a run forgets those of the last one."""

from __future__ import annotations

import os

import pytest

from tests.hardening.figures import Figures, clear

_FIGURES: list[Figures] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """Workers of pytest-xdist have a name in their environment; only the process that starts them clears."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        clear()


@pytest.fixture
def figures() -> Figures:
    """One a process."""
    if not _FIGURES:
        _FIGURES.append(Figures())
    return _FIGURES[0]
