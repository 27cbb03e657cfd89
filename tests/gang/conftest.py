"""One lab with real SGLang for all tests of the gang; each leaves it serving, or starts it first.

A boot takes a minute and more, so one restart serves as the next test's start, and the first boot is a test of its own:
its controller is killed in every phase.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from orchestrator.lab import cycle
from orchestrator.verbs import status
from tests.controllers import boot_under_kills
from tests.realgang import RealLab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealLab]:
    found = RealLab(tmp_path_factory.mktemp("gang"))
    asyncio.run(cycle.set_up(found.place, found.profile, found.events.append, None))
    try:
        found.first_boot = boot_under_kills(found)
        answer = found.do("up")
        assert answer.exit_code == 0, answer.data["failures"]
        found.first = answer.data
        yield found
    finally:
        asyncio.run(cycle.down(found.place, found.profile, found.events.append))
        assert found.processes() == []


@pytest.fixture
def serving(lab: RealLab) -> RealLab:
    """The lab with its gang up, whatever a test before has left."""
    if asyncio.run(status(lab.session())).exit_code != 0:
        answer = lab.do("up")
        assert answer.exit_code == 0, answer.data["failures"]
    return lab
