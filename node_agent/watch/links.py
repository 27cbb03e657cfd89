"""Links at every tick: state and RDMA counters. RoCE traffic is not in the netdev statistics."""

from __future__ import annotations

from typing import Any

from node_agent.facts.links import (
    DEVICE,
    PCI,
    VENDOR,
    parse_gigabits,
    parse_port_name,
    parse_state,
    read_addresses,
)
from node_agent.facts.source import DeniedError, Source, TimedOutError, UnreadableError
from node_agent.facts.text import line, whole

WORD_BYTES = 4
"""port_xmit_data and port_rcv_data count 4-byte words."""
ERRORS = (
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "hw_counters/packet_seq_err",
    "hw_counters/out_of_sequence",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
)
CONGESTION = ("hw_counters/rp_cnp_handled", "hw_counters/np_cnp_sent")
LINKS_MAX = 16


class Links:
    """Finds the links now and then, and reads them often."""

    def __init__(self) -> None:
        self._known: list[dict[str, Any]] = []

    def discover(self, source: Source) -> None:
        """Which links there are. What cannot be found out leaves the last answer."""
        try:
            found = _functions(source) or _rdma_devices(source)
            addresses = read_addresses(source)
        except (DeniedError, UnreadableError, TimedOutError):
            return
        self._known = [{**link, "addresses": addresses.get(link["netdev"], [])[:4]} for link in found]

    def read(self, source: Source) -> list[dict[str, Any]]:
        """Every known link as it is now."""
        return [{**link, **_now(source, link["netdev"], link["rdma"])} for link in self._known]


def _functions(source: Source) -> list[dict[str, Any]]:
    """The functions of the ConnectX-7, whether a driver holds them or not."""
    found = []
    for pci in source.names(PCI):
        folder = f"{PCI}/{pci}"
        if (line(source.text(f"{folder}/vendor")) or "").lower() != VENDOR:
            continue
        if (line(source.text(f"{folder}/device")) or "").lower() != DEVICE:
            continue
        netdev, rdma = source.names(f"{folder}/net")[:1], source.names(f"{folder}/infiniband")[:1]
        if netdev:
            found.append(_link(source, netdev[0], rdma[0] if rdma else "", pci.partition(":")[0]))
    return found[:LINKS_MAX]


def _rdma_devices(source: Source) -> list[dict[str, Any]]:
    """RDMA devices of other makes (soft RoCE): the network device is in the port's address table."""
    found = []
    for rdma in source.names("/sys/class/infiniband"):
        port = f"/sys/class/infiniband/{rdma}/ports/1"
        names = [
            line(source.text(f"{port}/gid_attrs/ndevs/{index}"))
            for index in source.names(f"{port}/gid_attrs/ndevs")
        ]
        if netdev := next((name for name in names if name), None):
            found.append(_link(source, netdev, rdma, ""))
    return found[:LINKS_MAX]


def _link(source: Source, netdev: str, rdma: str, half: str) -> dict[str, Any]:
    cage = parse_port_name(line(source.text(f"/sys/class/net/{netdev}/phys_port_name")), netdev)
    return {"netdev": netdev, "rdma": rdma, "cage": cage or netdev, "half": half}


def _now(source: Source, netdev: str, rdma: str) -> dict[str, Any]:
    net, port = f"/sys/class/net/{netdev}", f"/sys/class/infiniband/{rdma}/ports/1"
    try:
        operstate = line(source.text(f"{net}/operstate"))
        state = parse_state(source.text(f"{port}/state")) if rdma else None
        sent = whole(source.text(f"{port}/counters/port_xmit_data")) if rdma else None
        received = whole(source.text(f"{port}/counters/port_rcv_data")) if rdma else None
        return {
            # Both must agree: a port stays ACTIVE for a moment after its cable is gone, and a bare netdev is no rail.
            "up": operstate == "up" and state in {"ACTIVE", None},
            "state": state or operstate or "",
            "rate_gbps": parse_gigabits(source.text(f"{port}/rate")) if rdma else None,
            "sent_bytes": None if sent is None else sent * WORD_BYTES,
            "received_bytes": None if received is None else received * WORD_BYTES,
            "errors": _sum(source, port, ERRORS) if rdma else 0,
            "congestion": _sum(source, port, CONGESTION) if rdma else 0,
            "carrier_changes": whole(source.text(f"{net}/carrier_changes")) or 0,
        }
    except (DeniedError, UnreadableError) as error:
        return {"up": None, "state": f"unreadable: {error}"[:100]}


def _sum(source: Source, port: str, names: tuple[str, ...]) -> int:
    return sum(whole(source.text(f"{port}/{name}")) or 0 for name in names)
