"""The ConnectX-7: PCI functions ↔ network devices ↔ RoCE devices ↔ cages, found in sysfs, never by name."""

from __future__ import annotations

import re
import time
from typing import Any

from node_agent.facts.network import ADDRESSES, parse_interfaces
from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import line, lines, number, whole

PCI = "/sys/bus/pci/devices"
VENDOR, DEVICE = "0x15b3", "0x1021"  # MT2910, ConnectX-7
VIRTUAL_DEVICE = "0x101e"  # ConnectX family, virtual function
HOTPLUG = "/sys/bus/platform/drivers/cx7-pcie-hotplug"
HOTPLUG_FILE = "/etc/nvidia/cx7-hotplug-enabled"
TOOL_TIMEOUT_S = 3.0
DELTA_S = 0.25  # between the two looks at the counters
MAX_GIDS = 64
MAX_FUNCTIONS = 64
HARDWARE_COUNTERS = (
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "rp_cnp_handled",
    "np_cnp_sent",
    "rnr_nak_retry_err",
)
COUNTERS = ("port_xmit_data", "port_rcv_data", "symbol_error", "link_downed", "port_rcv_errors")
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def parse_gigabits(text: str | None) -> float | None:
    """`200 Gb/sec (4X HDR)` → 200.0."""
    found = re.match(r"\s*(\d{1,4}(?:\.\d+)?) Gb/sec", text or "")
    return float(found.group(1)) if found else None


def parse_state(text: str | None) -> str | None:
    """`4: ACTIVE` → `ACTIVE`; `5: LinkUp` → `LinkUp`."""
    found = re.fullmatch(r"\s*\d{1,3}:\s*(\w{1,30})\s*", text or "")
    return found.group(1) if found else None


def parse_devinfo(text: str) -> dict[str, int]:
    """`ibv_devinfo`: RoCE device → active MTU in bytes."""
    found: dict[str, int] = {}
    device = None
    for item in lines(text):
        match item.split():
            case ["hca_id:", name]:
                device = name
            case ["active_mtu:", size, *_] if device and whole(size) is not None:
                found[device] = int(size)
            case _:
                pass
    return found


def parse_port_name(name: str | None, netdev: str) -> str | None:
    """The cage: `phys_port_name` says p0 or p1; where a driver says nothing, the suffix of the name does."""
    found = re.fullmatch(r"p(\d)", name or "") or re.search(r"np(\d)$", netdev)
    return f"p{found.group(1)}" if found else None


def _gids(source: Source, port: str) -> list[dict[str, Any]]:
    found: list[tuple[int, dict[str, Any]]] = []
    for name in source.names(f"{port}/gids"):
        index = whole(name)
        gid = line(source.text(f"{port}/gids/{name}"))
        kind = line(
            source.text(f"{port}/gid_attrs/types/{name}")
        )  # an empty slot answers with an error: absent
        if index is None or gid is None or kind is None or gid == EMPTY_GID:
            continue
        device = line(source.text(f"{port}/gid_attrs/ndevs/{name}"))
        found.append((index, {"index": index, "gid": gid, "type": kind, "netdev": device}))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])[:MAX_GIDS]]


def _counters(source: Source, port: str) -> dict[str, int]:
    found = {}
    for folder, names in (("counters", COUNTERS), ("hw_counters", HARDWARE_COUNTERS)):
        for name in names:
            value = whole(source.text(f"{port}/{folder}/{name}"))
            if value is not None:
                found[name] = value
    return found


def _only(names: list[str]) -> str | None:
    return names[0] if names else None


def read_function(
    source: Source, pci: str, active_mtu: dict[str, int], addresses: dict[str, list[str]]
) -> dict[str, Any]:
    """One PCI function. What a function without driver or without link does not have is None."""
    folder = f"{PCI}/{pci}"
    netdev = _only(source.names(f"{folder}/net"))
    rdma = _only(source.names(f"{folder}/infiniband"))
    net = f"/sys/class/net/{netdev}"
    hca = f"/sys/class/infiniband/{rdma}"
    port = f"{hca}/ports/1"
    driver = source.target(f"{folder}/driver")
    master = source.target(f"{net}/master") if netdev else None
    speed = whole(source.text(f"{net}/speed")) if netdev else None
    return {
        "pci": pci,
        "virtual": (line(source.text(f"{folder}/device")) or "").lower() == VIRTUAL_DEVICE,
        "driver": driver.rpartition("/")[2] if driver else None,
        "pcie_gts": number((source.text(f"{folder}/current_link_speed") or "").partition(" ")[0]),
        "pcie_width": whole(source.text(f"{folder}/current_link_width")),
        "pcie_max_gts": number((source.text(f"{folder}/max_link_speed") or "").partition(" ")[0]),
        "pcie_max_width": whole(source.text(f"{folder}/max_link_width")),
        "netdev": netdev,
        "cage": parse_port_name(line(source.text(f"{net}/phys_port_name")), netdev) if netdev else None,
        "switch_id": line(source.text(f"{net}/phys_switch_id")) if netdev else None,
        "operstate": line(source.text(f"{net}/operstate")) if netdev else None,
        "carrier": whole(source.text(f"{net}/carrier")) == 1 if netdev else None,
        "carrier_changes": whole(source.text(f"{net}/carrier_changes")) if netdev else None,
        "speed_mbps": speed if speed is not None and speed > 0 else None,
        "mtu": whole(source.text(f"{net}/mtu")) if netdev else None,
        "mac": line(source.text(f"{net}/address")) if netdev else None,
        "master": master.rpartition("/")[2] if master else None,
        "addresses": addresses.get(netdev or "", []),
        "rdma": rdma,
        "firmware": line(source.text(f"{hca}/fw_ver")) if rdma else None,
        "state": parse_state(source.text(f"{port}/state")) if rdma else None,
        "physical_state": parse_state(source.text(f"{port}/phys_state")) if rdma else None,
        "rate_gbps": parse_gigabits(source.text(f"{port}/rate")) if rdma else None,
        "link_layer": line(source.text(f"{port}/link_layer")) if rdma else None,
        "active_mtu": active_mtu.get(rdma or ""),
        "gids": _gids(source, port) if rdma else [],
        "counters": _counters(source, port) if rdma else {},
    }


def read_addresses(source: Source) -> dict[str, list[str]]:
    """Network device → its addresses as `address/prefix`."""
    shown = source.run(*ADDRESSES, timeout_s=TOOL_TIMEOUT_S)
    return {item["name"]: item["addresses"] for item in parse_interfaces(shown.out)} if shown else {}


def read(source: Source) -> dict[str, Any]:
    """`functions` is empty where no ConnectX-7 can be seen: hot-removed, switched off, or another machine."""
    shown = source.run("ibv_devinfo", timeout_s=TOOL_TIMEOUT_S)
    active_mtu = parse_devinfo(shown.out) if shown else {}
    addresses = read_addresses(source)
    chosen = []
    for pci in source.names(PCI):
        vendor = (line(source.text(f"{PCI}/{pci}/vendor")) or "").lower()
        device = (line(source.text(f"{PCI}/{pci}/device")) or "").lower()
        if vendor == VENDOR and device in (DEVICE, VIRTUAL_DEVICE):
            chosen.append(pci)
    functions = [read_function(source, pci, active_mtu, addresses) for pci in chosen[:MAX_FUNCTIONS]]
    if functions and source.origin == "live":
        time.sleep(DELTA_S)
    for function in functions:
        rdma, before = function["rdma"], function["counters"]
        after = _counters(source, f"/sys/class/infiniband/{rdma}/ports/1") if rdma else {}
        function["deltas"] = {name: after[name] - before[name] for name in before if name in after}
    hotplug = None
    for name in source.names(HOTPLUG):
        if name.startswith("MTKP"):
            hotplug = whole(source.text(f"{HOTPLUG}/{name}/pcie_hotplug/hotplug_enabled")) == 1
    return {
        "functions": functions,
        "hotplug": hotplug,
        "hotplug_file": source.size(HOTPLUG_FILE) is not None,
        "verbs": len([name for name in source.names("/dev/infiniband") if name.startswith("uverbs")]),
        "rdma_cm": "rdma_cm" in source.names("/dev/infiniband"),
    }


READER = Reader("links", read)
