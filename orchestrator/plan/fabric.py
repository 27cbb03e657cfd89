"""What the links of a node mean for NCCL and gloo. Everything here was looked up on that node. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


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
