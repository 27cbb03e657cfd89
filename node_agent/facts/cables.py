"""The plugs in the cages, from their EEPROM, and what ethtool says of a link that does not come up."""

from __future__ import annotations

from typing import Any

from node_agent.facts.links import DEVICE, PCI, VENDOR
from node_agent.facts.reader import Reader
from node_agent.facts.source import MissingToolError, Source
from node_agent.facts.text import line, lines

COMMAND_TIMEOUT_S = 3.0


def parse_module(text: str) -> dict[str, str | None]:
    """`ethtool -m`: part number, serial number and kind of the plug; None for what it does not say."""
    wanted = {"Vendor PN": "part", "Vendor SN": "serial", "Vendor name": "vendor", "Identifier": "identifier"}
    found: dict[str, str | None] = dict.fromkeys(wanted.values())
    for item in lines(text):
        name, colon, value = item.partition(":")
        key = wanted.get(name.strip())
        if colon and key:
            found[key] = value.strip()[:100] or None
    return found


def parse_link(text: str) -> dict[str, str | None]:
    """`ethtool DEVICE`: the texts behind `Speed` and `Link detected`."""
    found: dict[str, str | None] = {"speed": None, "detected": None}
    for item in lines(text):
        name, colon, value = item.partition(":")
        if colon and name.strip() == "Speed":
            found["speed"] = value.strip()[:60]
        if colon and name.strip() == "Link detected":
            found["detected"] = value.strip()[:120]
    return found


def netdevs(source: Source) -> list[str]:
    """Network devices of the ConnectX-7."""
    found = []
    for pci in source.names(PCI):
        if (line(source.text(f"{PCI}/{pci}/vendor")), line(source.text(f"{PCI}/{pci}/device"))) == (
            VENDOR,
            DEVICE,
        ):
            found += source.names(f"{PCI}/{pci}/net")
    return found


def read_plugs(source: Source) -> dict[str, Any] | None:
    """Network device → its plug; a cage without one has no entry. None without ConnectX-7."""
    devices = netdevs(source)
    found = {}
    for netdev in devices:
        ran = source.run("ethtool", "-m", netdev, timeout_s=COMMAND_TIMEOUT_S, privileged=True)
        if ran is None:
            raise MissingToolError("ethtool: not installed (package ethtool)")
        if ran.status == 0 and ran.out.strip():
            found[netdev] = parse_module(ran.out)
    return found if devices else None


def read_links(source: Source) -> dict[str, Any] | None:
    """Network device → what ethtool says of its link. None without ConnectX-7 or without ethtool."""
    found = {}
    for netdev in netdevs(source):
        ran = source.run("ethtool", netdev, timeout_s=COMMAND_TIMEOUT_S)
        if ran is None:
            return None
        if ran.out.strip():
            found[netdev] = parse_link(ran.out)
    return found or None


PLUGS = Reader("plugs", read_plugs, need="root (ethtool -m)")
LINKS = Reader("negotiation", read_links)
