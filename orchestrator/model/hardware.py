"""What a node's readers found: one model a fact. Comes from a node, or from a file that a person wrote.

Nothing in it is trusted: every text and every list has a bound, an unknown key is an error, and a fact says
where it came from, and why it is missing when it is.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field, StringConstraints

from orchestrator.model.frozen import Frozen

Text = Annotated[str, StringConstraints(max_length=4096)]
Short = Annotated[str, StringConstraints(max_length=400)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Value = TypeVar("Value")

GIB = 1024**3


class FactError(Frozen):
    """Why a fact is missing."""

    kind: Literal["right", "timeout", "unreadable"]
    text: Short = ""
    need: Short = ""
    """The right that is missing, in words."""


class Fact(Frozen, Generic[Value]):
    """One fact: `value` None with `error` None means that the thing does not exist on this node."""

    origin: Literal["live", "recorded"]
    value: Value | None = None
    error: FactError | None = None
    took_s: float = Field(default=0.0, ge=0.0)


class Host(Frozen):
    """Identity and account."""

    hostname: Short
    machine_id: Short | None = None
    host_keys: tuple[Short, ...] = Field(default=(), max_length=16)
    user: Short | None = None
    groups: tuple[Short, ...] = Field(default=(), max_length=500)
    uptime_s: float | None = None
    boot_id: Short | None = None
    load_1min: float | None = None
    cpus: Count | None = None
    python: Short | None = None


class Kernel(Frozen):
    """Kernel, modules, settings."""

    release: Short
    command_line: Text = ""
    tainted: Count | None = None
    modules: tuple[Short, ...] = Field(default=(), max_length=100)
    drm_modeset: Short | None = None
    modeset_overrides: tuple[Short, ...] = Field(default=(), max_length=50)
    newest: Short | None = None
    missing_initrds: tuple[Short, ...] = Field(default=(), max_length=50)
    clock_cap_mhz: Count | None = None
    """GPU clock cap that a start-up file sets."""
    sysctls: dict[Short, int] = Field(default_factory=dict, max_length=100)


class Release(Frozen):
    """Operating system and over-the-air release."""

    system: Short | None = None
    dgx: Short | None = None
    ota: Short | None = None
    fastos: Short | None = None
    ota_score: int | None = None
    half_installed: tuple[Short, ...] = Field(default=(), max_length=50)


class Dmi(Frozen):
    """What the maker wrote into the machine."""

    vendor: Short | None = None
    product: Short | None = None
    version: Short | None = None
    board: Short | None = None
    bios: Short | None = None
    bios_date: Short | None = None

    @property
    def model(self) -> tuple[str, str]:
        """(vendor, product): firmware is only comparable within one."""
        return (self.vendor or "", self.product or "")


class FirmwareDevice(Frozen):
    """One device that fwupd knows."""

    name: Short
    version: Short | None = None
    vendor: Short = ""
    failed: Text | None = None


class Firmware(Frozen):
    """fwupd's view."""

    devices: tuple[FirmwareDevice, ...] = Field(default=(), max_length=100)
    failures: tuple[Text, ...] = Field(default=(), max_length=100)


class Clock(Frozen):
    """`unix_s` is the node's clock when the fact was read."""

    synchronized: bool | None = None
    unix_s: float


class Memory(Frozen):
    """/proc/meminfo, pressure and free blocks by order."""

    total_bytes: Count
    available_bytes: Count
    free_bytes: Count = 0
    cached_bytes: Count = 0
    shared_bytes: Count = 0
    swap_total_bytes: Count = 0
    swap_free_bytes: Count = 0
    cma_total_bytes: Count | None = None
    cma_free_bytes: Count | None = None
    pressure_full_avg10: float | None = None
    """Percent of the last ten seconds in which all tasks waited for memory."""
    pressure_some_avg10: float | None = None
    buddy_blocks: tuple[Count, ...] | None = Field(default=None, max_length=22)
    """Free blocks of 2^index pages, all zones together."""
    uptime_s: float | None = None


class GpuDevice(Frozen):
    """One row of nvidia-smi; None is what it calls N/A."""

    index: Count | None = None
    name: Short | None = None
    uuid: Short | None = None
    driver: Short | None = None
    pci: Short | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    utilization_percent: float | None = None
    sm_mhz: float | None = None
    sm_max_mhz: float | None = None
    pstate: Short | None = None
    memory_mib: float | None = None
    pcie_generation: float | None = None
    pcie_width: float | None = None
    reasons: Count | None = None
    """Bits of the clock event reasons."""


class GpuApp(Frozen):
    """A process that holds GPU memory."""

    pid: Count
    name: Short = ""
    bytes: Count | None = None
    user: Short | None = None
    container: Short | None = None


class Gpu(Frozen):
    """nvidia-smi's view; `failure` is its own sentence when it cannot see a GPU."""

    failure: Short | None = None
    devices: tuple[GpuDevice, ...] = Field(default=(), max_length=16)
    apps: tuple[GpuApp, ...] = Field(default=(), max_length=200)


class Rails(Frozen):
    """Power rails by label, in watts."""

    watts: dict[Short, float] = Field(default_factory=dict, max_length=40)
    cap_watts: dict[Short, float] = Field(default_factory=dict, max_length=40)
    prochot: int | None = None
    pl_level: int | None = None


class Zone(Frozen):
    """A thermal zone."""

    zone: Short
    type: Short | None = None
    celsius: float


class CpuPolicy(Frozen):
    """A CPU clock policy."""

    policy: Short
    max_khz: Count | None = None
    current_khz: Count | None = None
    hardware_max_khz: Count | None = None
    governor: Short | None = None


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


class Mount(Frozen):
    """A local file system."""

    device: Short
    path: Text
    type: Short
    options: tuple[Short, ...] = Field(default=(), max_length=60)
    total_bytes: Count
    free_bytes: Count


class Space(Frozen):
    """Local file systems and their space."""

    mounts: tuple[Mount, ...] = Field(default=(), max_length=100)
    test_image_bytes: Count | None = None


class Nvme(Frozen):
    """An NVMe controller."""

    name: Short
    model: Short | None = None
    firmware: Short | None = None
    state: Short | None = None
    pcie_gts: float | None = None
    pcie_max_gts: float | None = None
    pcie_width: Count | None = None
    pcie_max_width: Count | None = None


class Usb(Frozen):
    """A USB storage device."""

    name: Short
    product: Short | None = None
    speed_mbps: float | None = None


class Drives(Frozen):
    """Drives of the machine."""

    nvme: tuple[Nvme, ...] = Field(default=(), max_length=64)
    usb: tuple[Usb, ...] = Field(default=(), max_length=64)


class NfsMount(Frozen):
    """An NFS mount as the kernel has it."""

    path: Text
    server: Short
    export: Text
    protocol: Short | None = None
    version: Short | None = None
    connections: Count = 1
    read_bytes: Count | None = None
    hard: bool = True
    read_only: bool = False


class NfsExport(Frozen):
    """An NFS export."""

    path: Text
    client: Short
    options: tuple[Short, ...] = Field(default=(), max_length=100)


class Nfs(Frozen):
    """Mounts and exports."""

    mounts: tuple[NfsMount, ...] = Field(default=(), max_length=100)
    exports: tuple[NfsExport, ...] = Field(default=(), max_length=100)


class Container(Frozen):
    """A container, running or not."""

    id: Short
    name: Short = ""
    image: Short = ""
    state: Short = ""
    exit_code: int | None = None
    restarts: Count = 0
    gpu: bool = False
    privileged: bool = False
    memlock: int | None = None
    """Hard limit in bytes; -1 is unlimited, None is Docker's default."""
    devices: tuple[Short, ...] = Field(default=(), max_length=50)
    environment: dict[Short, Short] = Field(default_factory=dict, max_length=200)
    labels: dict[Short, Short] = Field(default_factory=dict, max_length=200)


class Image(Frozen):
    """A container image."""

    id: Short
    tags: tuple[Short, ...] = Field(default=(), max_length=10)
    architecture: Short = ""
    bytes: Count = 0


class Docker(Frozen):
    """The Docker daemon."""

    reachable: bool
    error: Short | None = None
    version: Short = ""
    storage: Short = ""
    store: Short = ""
    root: Short = ""
    runtimes: tuple[Short, ...] = Field(default=(), max_length=20)
    cgroup_version: Short = ""
    warnings: tuple[Short, ...] = Field(default=(), max_length=20)
    cdi: tuple[Short, ...] = Field(default=(), max_length=50)
    containers: tuple[Container, ...] = Field(default=(), max_length=100)
    images: tuple[Image, ...] = Field(default=(), max_length=100)


class Listener(Frozen):
    """A TCP port that somebody listens on."""

    address: Short
    port: int = Field(ge=0, le=65535)
    pid: Count | None = None
    process: Short | None = None


class Process(Frozen):
    """A process that kills others for memory, or holds much of it."""

    pid: Count
    kind: Literal["killer", "holder"]
    command: Short
    resident_bytes: Count = 0
    container: Short | None = None


class Ending(Frozen):
    """How the boot before this one ended."""

    clean: bool
    tail: tuple[Short, ...] = Field(default=(), max_length=20)


class Services(Frozen):
    """What two services said."""

    avahi_name: Short | None = None
    dhcp_failures: tuple[Short, ...] = Field(default=(), max_length=300)


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


class BurnSample(Frozen):
    """The GPU at one moment of a compute burn."""

    at_s: float
    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization_percent: float | None = None
    reasons: Count | None = None


class BurnProbe(Frozen):
    """A compute-bound load on the GPU."""

    unix_s: float
    seconds: float
    tflops: float | None = None
    samples: tuple[BurnSample, ...] = Field(default=(), max_length=1000)


class GemvProbe(Frozen):
    """Small matrix-vector products, one bandwidth for each second."""

    unix_s: float
    gigabytes_per_s: tuple[float, ...] = Field(default=(), max_length=1000)
    copy_gigabytes_per_s: float | None = None


class RdmaProbe(Frozen):
    """`ib_write_bw` from this node. `netdev` is `both` when the twins ran together."""

    unix_s: float
    netdev: Short
    peer: Short
    gbps: float


class NvmeProbe(Frozen):
    """Random direct reads of 4 KiB."""

    unix_s: float
    path: Text
    qd1_iops: float
    qd1_p99_us: float
    qd64_iops: float
    sequential_gigabytes_per_s: float | None = None
    mismatches: Count | None = None
    """Blocks that read differently through the page cache and around it."""


class AllReduceProbe(Frozen):
    """A real NCCL all-reduce."""

    unix_s: float
    ok: bool
    gigabytes_per_s: float | None = None
    transport: Short | None = None
    text: Text = ""


class Probes(Frozen):
    """Results of earlier load probes; None: not run."""

    burn: BurnProbe | None = None
    gemv: GemvProbe | None = None
    nvme: NvmeProbe | None = None
    rdma: tuple[RdmaProbe, ...] = Field(default=(), max_length=500)
    allreduce: AllReduceProbe | None = None
    missing: dict[Short, Short] = Field(default_factory=dict, max_length=50)
    """Probe → why it could not run here."""


class Peer(Frozen):
    """Whether an address answers through an interface; None: it could not be asked."""

    device: Short
    address: Short
    answers: bool | None = None
    answers_jumbo: bool | None = None


class Facts(Frozen):
    """Every fact by its reader. One that is not here was not asked for."""

    host: Fact[Host] | None = None
    kernel: Fact[Kernel] | None = None
    release: Fact[Release] | None = None
    dmi: Fact[Dmi] | None = None
    firmware: Fact[Firmware] | None = None
    clock: Fact[Clock] | None = None
    memory: Fact[Memory] | None = None
    gpu: Fact[Gpu] | None = None
    rails: Fact[Rails] | None = None
    thermal: Fact[tuple[Zone, ...]] | None = None
    cpu: Fact[tuple[CpuPolicy, ...]] | None = None
    links: Fact[Links] | None = None
    network: Fact[Network] | None = None
    forwarding: Fact[Forwarding] | None = None
    netplan: Fact[tuple[NetplanFile, ...]] | None = None
    netplan_contents: Fact[tuple[NetplanContent, ...]] | None = None
    nccl: Fact[Nccl] | None = None
    space: Fact[Space] | None = None
    drives: Fact[Drives] | None = None
    smart: Fact[dict[Short, dict[Short, int]]] | None = None
    nfs: Fact[Nfs] | None = None
    docker: Fact[Docker] | None = None
    listeners: Fact[tuple[Listener, ...]] | None = None
    processes: Fact[tuple[Process, ...]] | None = None
    kernel_log: Fact[dict[Short, tuple[Short, ...]]] | None = None
    previous_boot: Fact[Ending] | None = None
    services: Fact[Services] | None = None
    plugs: Fact[dict[Short, Plug]] | None = None
    negotiation: Fact[dict[Short, Negotiation]] | None = None
    probes: Fact[Probes] | None = None
    peers: Fact[tuple[Peer, ...]] | None = None


class Hardware(Frozen):
    """What one node's readers delivered, in one answer."""

    schema_: Literal["sparkyard/hardware/v1"] = Field(default="sparkyard/hardware/v1", alias="schema")
    took_s: float = Field(default=0.0, ge=0.0)
    facts: Facts
