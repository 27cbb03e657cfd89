"""One boot of the real lab for every module that only uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.lab.nodes import running
from orchestrator.lab.place import Place
from tests.reallab import CYCLE_TIMEOUT_S, call, leftovers


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a lab that serves; at the end nothing of it is left."""
    state = tmp_path_factory.mktemp("state")
    done = call(state, "lab", timeout_s=CYCLE_TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    yield state
    assert call(state, "lab", "--down").returncode == 0
    assert leftovers(state) == []
    assert running(Place(state / "sparkyard" / "lab")) == ()
