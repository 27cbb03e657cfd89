"""Addresses, routes and neighbours of every interface; the management side of the node."""

from __future__ import annotations

import json
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import MissingToolError, Source, UnreadableError
from node_agent.facts.text import line, lines, whole

ADDRESSES = ("ip", "-j", "address", "show")
ROUTES = ("ip", "-j", "-4", "route", "show")
NEIGHBOURS = ("ip", "-j", "-4", "neigh", "show")
WAITING = ("ss", "-tnH", "state", "syn-sent")
COMMAND_TIMEOUT_S = 3.0
MAX_ROWS = 500


def _rows(text: str, what: str) -> list[dict[str, Any]]:
    if not text.strip():
        return []
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{what}: not JSON: {str(error)[:100]}") from error
    if not isinstance(data, list):
        raise UnreadableError(f"{what}: not a list")
    return [item for item in data if isinstance(item, dict)][:MAX_ROWS]


def parse_interfaces(text: str) -> list[dict[str, Any]]:
    """`ip -j address show`: name, MTU, state, addresses as `address/prefix`, global ones and link-local IPv4.

    Raises UnreadableError when it is not the JSON that iproute2 writes.
    """
    found = []
    for row in _rows(text, "ip address"):
        name = row.get("ifname")
        if not isinstance(name, str) or not name:
            continue
        addresses = [
            f"{item['local'][:45]}/{item['prefixlen']}"
            for item in row.get("addr_info") or []
            if isinstance(item, dict)
            and isinstance(item.get("local"), str)
            and isinstance(item.get("prefixlen"), int)
        ]
        found.append(
            {
                "name": name[:64],
                "mtu": row["mtu"] if isinstance(row.get("mtu"), int) else None,
                "state": str(row.get("operstate", ""))[:20].lower() or None,
                "addresses": addresses[:50],
            }
        )
    return found


def parse_routes(text: str) -> list[dict[str, Any]]:
    """`ip -j route`: destination, device, gateway, metric."""
    found = []
    for row in _rows(text, "ip route"):
        if not isinstance(row.get("dst"), str):
            continue
        found.append(
            {
                "to": row["dst"][:64],
                "device": str(row.get("dev", ""))[:64] or None,
                "gateway": str(row.get("gateway", ""))[:64] or None,
                "metric": row["metric"] if isinstance(row.get("metric"), int) else None,
            }
        )
    return found


def parse_neighbours(text: str) -> list[dict[str, Any]]:
    """`ip -j neigh`: address, device, MAC, state."""
    found = []
    for row in _rows(text, "ip neigh"):
        if isinstance(row.get("dst"), str):
            state = row.get("state")
            found.append(
                {
                    "address": row["dst"][:64],
                    "device": str(row.get("dev", ""))[:64] or None,
                    "mac": str(row.get("lladdr", ""))[:32] or None,
                    "state": str(state[0] if isinstance(state, list) and state else state or "")[:20],
                }
            )
    return found


def parse_waiting(text: str) -> list[str]:
    """Peers of TCP connections that get no answer (`ss` in state syn-sent), as `address:port`."""
    return [item.split()[-1][:64] for item in lines(text) if len(item.split()) >= 4][:50]


def read_bonds(source: Source) -> dict[str, list[str]]:
    """Bond → its member interfaces."""
    bonds = {}
    for name in source.names("/proc/net/bonding"):
        text = source.text(f"/proc/net/bonding/{name}") or ""
        bonds[name] = [
            item.partition(":")[2].strip()[:64] for item in lines(text) if item.startswith("Slave Interface:")
        ]
    return bonds


def read(source: Source) -> dict[str, Any]:
    """Raises MissingToolError where iproute2 is missing: without addresses no link can be judged."""
    shown = source.run(*ADDRESSES, timeout_s=COMMAND_TIMEOUT_S)
    if shown is None:
        raise MissingToolError("ip: not installed (package iproute2)")
    if shown.status != 0:
        raise UnreadableError(f"ip address: status {shown.status} {shown.err.strip()[:200]}")
    routes = source.run(*ROUTES, timeout_s=COMMAND_TIMEOUT_S)
    neighbours = source.run(*NEIGHBOURS, timeout_s=COMMAND_TIMEOUT_S)
    waiting = source.run(*WAITING, timeout_s=COMMAND_TIMEOUT_S)
    interfaces = parse_interfaces(shown.out)
    for item in interfaces:
        driver = source.target(f"/sys/class/net/{item['name']}/device/driver")
        item["driver"] = driver.rpartition("/")[2] if driver else None
        item["wireless"] = bool(source.names(f"/sys/class/net/{item['name']}/wireless"))
        if item["state"] is None:
            item["state"] = line(source.text(f"/sys/class/net/{item['name']}/operstate"))
    return {
        "interfaces": interfaces,
        "routes": parse_routes(routes.out) if routes else [],
        "neighbours": parse_neighbours(neighbours.out) if neighbours else [],
        "bonds": read_bonds(source),
        "unanswered": parse_waiting(waiting.out) if waiting else [],
        "ip_forward": whole(source.text("/proc/sys/net/ipv4/ip_forward")) == 1,
    }


READER = Reader("network", read)
