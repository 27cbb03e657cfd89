"""What the links of a node mean for NCCL and gloo. Everything here was looked up on that node. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from orchestrator.model.cluster import Cluster
from orchestrator.model.fabric import Function
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.hardware import Hardware

LINK_FACTS = ("links", "network")
"""Hardware facts that `looked_up` reads, part of every look at more than one host; together they take 0.03 s."""


@dataclass(frozen=True, slots=True)
class Rail:
    """One RDMA function of a port (a Spark's QSFP port shows as two). `gid_index` is that of its RoCE v2 address."""

    hca: str
    interface: str
    address: str
    """IPv4 address with prefix length, for example `10.0.12.1/24`."""
    gid_index: int


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of one node. `socket_interface` carries the address that every other node reaches."""

    socket_interface: str
    rails: tuple[Rail, ...]

    def address_towards(self, other: Fabric) -> str | None:
        """Our address on a network that the other node shares; the first in the order of our rails."""
        networks = {ipaddress.ip_interface(rail.address).network for rail in other.rails}
        for rail in self.rails:
            ours = ipaddress.ip_interface(rail.address)
            if ours.network in networks:
                return str(ours.ip)
        return None

    def environment(self) -> dict[str, str]:
        """Variables of gloo and NCCL that name this node's devices.

        One process has one `NCCL_IB_GID_INDEX`. Where the rails of a node differ, NCCL picks for itself among the RoCE
        v2 addresses (NCCL 2.30: `NCCL_IB_GID_INDEX` unset, `NCCL_IB_ROCE_VERSION_NUM`, `NCCL_IB_ADDR_FAMILY`).
        """
        env = {"GLOO_SOCKET_IFNAME": self.socket_interface, "NCCL_SOCKET_IFNAME": self.socket_interface}
        if not self.rails:
            return env
        env["NCCL_IB_HCA"] = "=" + ",".join(rail.hca for rail in self.rails)  # `=`: exactly these names
        indices = {rail.gid_index for rail in self.rails}
        if len(indices) == 1:
            env["NCCL_IB_GID_INDEX"] = str(indices.pop())
        else:
            env |= {"NCCL_IB_ROCE_VERSION_NUM": "2", "NCCL_IB_ADDR_FAMILY": "AF_INET"}
        return env


def looked_up(cluster: Cluster, facts: ClusterFacts) -> dict[str, Fabric]:
    """The links of every node that has told its hardware, by node name. Nothing on a single host: there are none."""
    found: dict[str, Fabric] = {}
    if cluster.topology == "single-host":
        return found
    for node in cluster.nodes:
        here = facts.get(node.name)
        if here is None or here.hardware is None:
            continue
        fabric = fabric_of(Hardware.model_validate(here.hardware), node.address)
        if fabric is not None:
            found[node.name] = fabric
    return found


def fabric_of(hardware: Hardware, address: str) -> Fabric | None:
    """The node's rails in the order of their PCI addresses; None when no interface reaches the other nodes.

    `address` is what the cluster file says; the interface that carries it, or else that of the default route, carries
    the sockets of gloo and NCCL.
    """
    network = hardware.facts.network.value if hardware.facts.network else None
    links = hardware.facts.links.value if hardware.facts.links else None
    if network is None or links is None:
        return None
    carrying = [
        each.name
        for each in network.interfaces
        if address in {str(ipaddress.ip_interface(found).ip) for found in each.addresses if "/" in found}
    ]
    carrying += [route.device for route in network.routes if route.to == "default" and route.device]
    rails = [_rail(each) for each in sorted(links.functions, key=lambda each: each.pci)]
    return Fabric(carrying[0], tuple(rail for rail in rails if rail is not None)) if carrying else None


def _rail(function: Function) -> Rail | None:
    """A function that is up, has a RoCE device, an IPv4 address, and that address in its GID table as RoCE v2."""
    if not function.up or function.rdma is None or function.netdev is None:
        return None
    for address in function.ipv4:
        wanted = ipaddress.ip_interface(address).ip
        for gid in function.gids:
            if gid.routable_v2 and ipaddress.IPv6Address(gid.gid).ipv4_mapped == wanted:
                return Rail(function.rdma, function.netdev, address, gid.index)
    return None
