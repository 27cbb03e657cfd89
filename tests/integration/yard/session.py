"""A yard as tests use it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.yard import files, nodes, state
from tests.integration.yard.layout import Layout, Topology, plan

CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Yard:
    """Nodes that are up."""

    layout: Layout

    @property
    def folder(self) -> Path:
        """State folder: `cluster.yaml`, `known_hosts`, `id_ed25519`, `nodes/NAME/disk`."""
        return state.folder(self.layout.id)

    @property
    def cluster(self) -> Path:
        """The ready `cluster.yaml`."""
        return self.folder / "cluster.yaml"

    def disk(self, name: str) -> Path:
        """The node's `/srv/nvme`, as the host sees it."""
        return self.folder / "nodes" / name / "disk"

    def enter(self, name: str) -> list[str]:
        """Start of a command line that runs in that node."""
        return nodes.enter(self.layout, self.layout.node(name))

    def run(
        self, name: str, *argv: str, check: bool = True, timeout_s: float = 60.0, stdin: str | None = None
    ) -> str:
        """Run a command in a node as root; its output."""
        return state.run(*self.enter(name), *argv, check=check, timeout_s=timeout_s, stdin=stdin)

    def control(self, *argv: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the host in the controller's network: how the tests start sparkyard."""
        command = [*nodes.controller(self.layout), *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def engines(self) -> None:
        """Start every node's Docker engine."""
        for node in self.layout.nodes:
            nodes.engine(self.layout, node)

    def power_off(self, name: str) -> None:
        """A node vanishes with its processes, mounts and addresses; its disk stays."""
        nodes.stop_node(self.layout, self.layout.node(name))

    def heal(self) -> None:
        """Make what is missing."""
        nodes.up(self.layout)


@contextmanager
def yard(yard_id: str, count: int, topology: Topology, *, docker: bool = False) -> Iterator[Yard]:
    """A yard for the length of a block; whatever happens, nothing of it stays."""
    layout = plan(yard_id, count, topology)
    try:
        nodes.up(layout)
        files.write(layout)
        made = Yard(layout)
        if docker:
            made.engines()
        yield made
    finally:
        nodes.down(yard_id)


@contextmanager
def network(namespace: str) -> Iterator[None]:
    """This thread, and threads that it starts, live in a network namespace for the length of a block.

    `os.setns` came with Python 3.12, hence libc.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        _set(libc, there)
        try:
            yield
        finally:
            _set(libc, home)
    finally:
        os.close(home)
        os.close(there)


def _set(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")
