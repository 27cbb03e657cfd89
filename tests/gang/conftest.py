"""One lab with real SGLang for all tests of the gang; each leaves it serving, or starts it first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from orchestrator.lab import cycle, nodes
from tests.realgang import RealLab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealLab]:
    found = RealLab(tmp_path_factory.mktemp("gang"))
    asyncio.run(cycle.set_up(found.place, found.profile, found.events.append, None))
    try:
        answer = found.do("up")
        assert answer.exit_code == 0, answer.data["failures"]
        found.first = answer.data
        yield found
    finally:
        nodes.up(found.place)
        found.do("stop")
        nodes.down(found.place)
        assert found.processes() == []


@pytest.fixture
def serving(lab: RealLab) -> RealLab:
    """The lab with its gang up, whatever a test before has left."""
    answer = lab.do("up")
    assert answer.exit_code == 0, answer.data["failures"]
    return lab
