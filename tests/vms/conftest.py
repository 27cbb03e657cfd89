"""The machines, booted once for the suite."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.yard import vms
from tests.vms.machines import Machines, make


@pytest.fixture(scope="session")
def machines() -> Iterator[Machines]:
    """Both, with the checkpoint on the first."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    name = f"v{os.getpid() % 1_000_000}"
    try:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            yield make(name, Path(folder))
    finally:
        vms.down(name)
