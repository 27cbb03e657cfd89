"""What a node's readers found: one model a fact. Comes from a node, or from a file that a person wrote.

Nothing in it is trusted: every text and every list has a bound, an unknown key is an error, and a fact says
where it came from, and why it is missing when it is.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import Field

from orchestrator.model.bounded import Count, Short, Text
from orchestrator.model.containers import Docker
from orchestrator.model.fabric import (
    Forwarding,
    Links,
    Nccl,
    Negotiation,
    NetplanContent,
    NetplanFile,
    Network,
    Peer,
    Plug,
)
from orchestrator.model.frozen import Frozen
from orchestrator.model.probes import Probes

Value = TypeVar("Value")

GIB = 1024**3


class FactError(Frozen):
    """Why a fact is missing."""

    kind: Literal["right", "tool", "timeout", "unreadable"]
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
