"""One boot of the real lab for every module that only uses it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.lab import cycle
from orchestrator.lab.nodes import running
from tests.reallab import CYCLE_TIMEOUT_S, RealLab, call, leftovers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share the lab come last, together: no other deployment takes memory and cores beside it."""
    items.sort(key=lambda item: "served" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a lab that serves; at the end nothing of it is left."""
    state = tmp_path_factory.mktemp("state")
    lab = RealLab(state)
    # As `./start.sh lab` does it, without its proof: that one has a test, and asks for a minute and a second boot.
    asyncio.run(
        cycle.set_up(lab.place, lab.profile, lab.events.append, os.environ.get("SPARKYARD_TORCH_FROM"))
    )
    done = call(state, "up", "--json", timeout_s=CYCLE_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    yield state
    assert call(state, "lab", "--down").returncode == 0
    assert leftovers(state) == []
    assert running(lab.place) == ()
