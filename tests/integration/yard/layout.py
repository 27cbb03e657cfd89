"""What a yard looks like: nodes, addresses and cables. Pure; `nodes.py` makes it so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Topology = Literal["triangle", "switch", "ring"]
MAX_NODES = 8
ID_PATTERN = re.compile(r"^[a-z][a-z0-9]{0,7}$")
MANAGEMENT = "enP7s7"
"""Name of the 10GbE interface of a DGX Spark."""
PORTS = ("enp1s0f0np0", "enp1s0f1np1")
"""Names of the two ConnectX-7 ports."""
FABRIC_MTU = 9000
CONTROLLER_ADDRESS = "10.77.0.1"


@dataclass(frozen=True, slots=True)
class Address:
    """One interface of one node; `cable` is shared by the two ends, or by all ports of one switch rail."""

    interface: str
    address: str
    prefix: int
    cable: str


@dataclass(frozen=True, slots=True)
class YardNode:
    """One node: ``namespace`` is its network namespace in the host."""

    number: int
    name: str
    namespace: str
    management: str
    fabric: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole yard. The controller's namespace holds the management bridge."""

    id: str
    topology: Topology
    nodes: tuple[YardNode, ...]

    @property
    def controller(self) -> str:
        """Network namespace of the controller and of the management network."""
        return f"{self.id}-ctl"

    @property
    def switch(self) -> str:
        """Network namespace of the fabric switch."""
        return f"{self.id}-sw"

    def node(self, name: str) -> YardNode:
        """The node called ``name``; KeyError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def plan(yard_id: str, count: int, topology: Topology) -> Layout:
    """Lay out ``count`` nodes. ValueError when the id or the count does not fit the topology."""
    if not ID_PATTERN.match(yard_id):
        raise ValueError(f"yard id {yard_id!r}: up to 8 lower-case letters and digits, a letter first")
    lowest = {"triangle": 3, "ring": 3, "switch": 1}[topology]
    highest = {"triangle": 3, "ring": MAX_NODES, "switch": MAX_NODES}[topology]
    if not lowest <= count <= highest:
        raise ValueError(f"a {topology} has {lowest} to {highest} nodes, not {count}")
    nodes = tuple(
        YardNode(
            number=i,
            name=f"spark-{i}",
            namespace=f"{yard_id}-{i}",
            management=f"10.77.0.{10 + i}",
            fabric=_switched(i) if topology == "switch" else _cabled(i, count),
        )
        for i in range(1, count + 1)
    )
    return Layout(yard_id, topology, nodes)


def _switched(i: int) -> tuple[Address, ...]:
    """Both ports on one switch, one subnet a rail."""
    return tuple(
        Address(port, f"192.168.{101 + rail}.{10 + i}", 24, f"rail{rail}") for rail, port in enumerate(PORTS)
    )


def _cabled(i: int, count: int) -> tuple[Address, ...]:
    """Port 0 goes to the next node's port 1; cable i joins node i and node i + 1."""
    before = (i - 2) % count + 1
    return (
        Address(PORTS[0], f"192.168.{100 + i}.1", 30, f"cable{i}"),
        Address(PORTS[1], f"192.168.{100 + before}.2", 30, f"cable{before}"),
    )
