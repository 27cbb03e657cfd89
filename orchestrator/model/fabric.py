"""The fast links and the network of a node, as its readers found them."""

from __future__ import annotations

from pydantic import Field

from orchestrator.model.bounded import Count, Short
from orchestrator.model.frozen import Frozen


class Gid(Frozen):
    """A row of a RoCE device's address table."""

    index: Count
    gid: Short
    type: Short
    netdev: Short | None = None

    @property
    def routable_v2(self) -> bool:
        """A RoCE v2 row that carries an IPv4 address: what NCCL needs."""
        return self.type == "RoCE v2" and ":ffff:" in self.gid and self.gid.startswith("0000:0000:0000:0000")


class Function(Frozen):
    """One PCI function of the ConnectX-7 with its network and its RoCE device."""

    pci: Short
    virtual: bool = False
    driver: Short | None = None
    pcie_gts: float | None = None
    pcie_width: Count | None = None
    pcie_max_gts: float | None = None
    pcie_max_width: Count | None = None
    netdev: Short | None = None
    cage: Short | None = None
    switch_id: Short | None = None
    operstate: Short | None = None
    carrier: bool | None = None
    carrier_changes: Count | None = None
    speed_mbps: Count | None = None
    mtu: Count | None = None
    mac: Short | None = None
    master: Short | None = None
    addresses: tuple[Short, ...] = Field(default=(), max_length=50)
    rdma: Short | None = None
    firmware: Short | None = None
    state: Short | None = None
    physical_state: Short | None = None
    rate_gbps: float | None = None
    link_layer: Short | None = None
    active_mtu: Count | None = None
    gids: tuple[Gid, ...] = Field(default=(), max_length=64)
    counters: dict[Short, int] = Field(default_factory=dict, max_length=50)
    deltas: dict[Short, int] = Field(default_factory=dict, max_length=50)

    @property
    def domain(self) -> str:
        """PCI domain: which of the two x4 links of the card."""
        return self.pci.partition(":")[0]

    @property
    def up(self) -> bool:
        """The link carries data."""
        return self.state == "ACTIVE" or (self.state is None and self.carrier is True)

    @property
    def ipv4(self) -> tuple[str, ...]:
        """IPv4 addresses with their prefix."""
        return tuple(address for address in self.addresses if ":" not in address)


class Links(Frozen):
    """The ConnectX-7 of a node."""

    functions: tuple[Function, ...] = Field(default=(), max_length=64)
    hotplug: bool | None = None
    hotplug_file: bool = False
    verbs: Count = 0
    rdma_cm: bool = False


class Interface(Frozen):
    """A network interface."""

    name: Short
    mtu: Count | None = None
    state: Short | None = None
    addresses: tuple[Short, ...] = Field(default=(), max_length=50)
    driver: Short | None = None
    wireless: bool = False


class Route(Frozen):
    """An IPv4 route."""

    to: Short
    device: Short | None = None
    gateway: Short | None = None
    metric: Count | None = None


class Neighbour(Frozen):
    """A row of the neighbour table."""

    address: Short
    device: Short | None = None
    mac: Short | None = None
    state: Short = ""


class Network(Frozen):
    """Interfaces, routes, neighbours."""

    interfaces: tuple[Interface, ...] = Field(default=(), max_length=500)
    routes: tuple[Route, ...] = Field(default=(), max_length=500)
    neighbours: tuple[Neighbour, ...] = Field(default=(), max_length=500)
    bonds: dict[Short, tuple[Short, ...]] = Field(default_factory=dict, max_length=50)
    unanswered: tuple[Short, ...] = Field(default=(), max_length=50)
    ip_forward: bool = False


class Forwarding(Frozen):
    """Packet filter of forwarded traffic."""

    policy: Short | None = None
    docker_user: tuple[Short, ...] = Field(default=(), max_length=400)


class NetplanFile(Frozen):
    """A netplan file and its permission bits."""

    path: Short
    mode: Count | None = None


class NetplanContent(Frozen):
    """A netplan file and the link interfaces that it names."""

    path: Short
    interfaces: tuple[Short, ...] = Field(default=(), max_length=100)


class Nccl(Frozen):
    """NCCL's configuration file (None: there is none) and system-wide variables."""

    config: dict[Short, Short] | None = Field(default=None, max_length=200)
    environment: dict[Short, Short] = Field(default_factory=dict, max_length=200)


class Plug(Frozen):
    """What the EEPROM of a cable's plug says."""

    part: Short | None = None
    serial: Short | None = None
    vendor: Short | None = None
    identifier: Short | None = None


class Negotiation(Frozen):
    """What ethtool says of a link."""

    speed: Short | None = None
    detected: Short | None = None


class Peer(Frozen):
    """Whether an address answers through an interface; None: it could not be asked."""

    device: Short
    address: Short
    answers: bool | None = None
    answers_jumbo: bool | None = None
