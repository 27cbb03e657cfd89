"""Fixtures of the integration tests: yards of real nodes. They need root and `install.sh`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.fleet import Fleet, make
from tests.integration.yard.session import Yard, network, yard


def _id(letter: str) -> str:
    """An id that two test runs on one machine do not share."""
    return f"{letter}{os.getpid() % 10_000_000}"


@pytest.fixture(scope="session")
def need_root() -> None:
    """Namespaces want root; without it these tests say so instead of failing one by one."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")


@pytest.fixture(scope="session")
def yard4(need_root: None) -> Iterator[Yard]:
    """Four nodes on a switch, two rails each, with a Docker engine each, without any deployment on them."""
    with yard(_id("r"), 4, "switch", docker=True) as made:
        yield made


@pytest.fixture(scope="session")
def yard2(need_root: None) -> Iterator[Yard]:
    """Two plain nodes on one switch: OpenSSH with its default limits, no Docker engine."""
    with yard(_id("s"), 2, "switch") as made:
        yield made


@pytest.fixture
def openssh(yard2: Yard) -> Iterator[Yard]:
    """``yard2``, with the test's thread in the controller's network: `asyncssh.connect` reaches nodes."""
    with network(yard2.layout.controller):
        yield yard2


@pytest.fixture(scope="session")
def fleet(yard4: Yard) -> Fleet:
    """``yard4`` with a base image and a checkpoint on its head; nothing built or shared yet."""
    return make(yard4)
