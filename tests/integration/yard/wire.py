"""The cables of a yard: their rate, their faults, and what went over them."""

from __future__ import annotations

from tests.integration.yard import state
from tests.integration.yard.layout import PORTS, Layout
from tests.integration.yard.session import Yard

BURST = "256kb"
LATENCY = "50ms"


def _ends(layout: Layout, name: str, rail: int) -> list[tuple[str, str]]:
    """Both ends of a node's cable as (namespace, interface): its own port, and the switch's or the neighbour's."""
    node = layout.node(name)
    link = node.fabric[rail]
    if layout.topology == "switch":
        return [(node.namespace, link.interface), (layout.switch, f"p{node.number}{link.cable}")]
    far = [
        (other.namespace, end.interface)
        for other in layout.nodes
        for end in other.fabric
        if end.cable == link.cable and other.name != name
    ]
    return [(node.namespace, link.interface), *far]


def shape(yard: Yard, name: str, rail: int, mbit: int) -> None:
    """Limit a cable to ``mbit`` Mbit/s in each direction; 0 takes the limit away."""
    for namespace, interface in _ends(yard.layout, name, rail):
        base = ["tc", "-n", namespace, "qdisc"]
        if mbit == 0:
            state.run(*base, "del", "dev", interface, "root", check=False)
            continue
        limit = ["tbf", "rate", f"{mbit}mbit", "burst", BURST, "latency", LATENCY]
        state.run(*base, "replace", "dev", interface, "root", *limit)


def shape_all(yard: Yard, mbit: int) -> None:
    """Limit every cable."""
    for node in yard.layout.nodes:
        for rail in range(len(node.fabric)):
            shape(yard, node.name, rail, mbit)


def cut(yard: Yard, name: str, rail: int) -> None:
    """Pull the plug: both ends lose their carrier."""
    for namespace, interface in _ends(yard.layout, name, rail):
        state.run("ip", "-n", namespace, "link", "set", interface, "down")
    _rdma(yard, name, rail, "1: DOWN", "2: Polling")


def join(yard: Yard, name: str, rail: int) -> None:
    """Plug it in again."""
    for namespace, interface in _ends(yard.layout, name, rail):
        state.run("ip", "-n", namespace, "link", "set", interface, "up")
    _rdma(yard, name, rail, "4: ACTIVE", "5: LinkUp")


def _rdma(yard: Yard, name: str, rail: int, port: str, physical: str) -> None:
    """What the port's RDMA side shows: files that `sys-facts.sh` made, which no driver changes."""
    namespaces = {node.namespace: node.name for node in yard.layout.nodes}
    for namespace, interface in _ends(yard.layout, name, rail):
        if namespace in namespaces:
            folder = f"/sys/class/infiniband/rocep1s0f{PORTS.index(interface)}/ports/1"
            script = f"echo '{port}' >{folder}/state && echo '{physical}' >{folder}/phys_state"
            yard.run(namespaces[namespace], "sh", "-c", script)


def mtu(yard: Yard, name: str, rail: int, value: int) -> None:
    """Another MTU on the node's own end only."""
    node = yard.layout.node(name)
    state.run("ip", "-n", node.namespace, "link", "set", node.fabric[rail].interface, "mtu", str(value))


def received_bytes(yard: Yard, name: str) -> int:
    """Bytes that came to the node over its fabric ports since they exist."""
    paths = [f"/sys/class/net/{link.interface}/statistics/rx_bytes" for link in yard.layout.node(name).fabric]
    return sum(int(word) for word in yard.run(name, "cat", *paths).split())
