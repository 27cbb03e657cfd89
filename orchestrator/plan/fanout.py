"""Who sends the image to whom: a tree over the fast links in which no link carries the same bytes twice. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Port:
    """One address of one node. ``speed_mbit`` is 0 where the kernel does not tell."""

    address: str
    """With prefix length, for example `192.168.101.11/24`."""
    speed_mbit: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """A node to read from, by one address a rail."""

    node: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """How one node gets its bytes: the preferred source first. ``readers`` are the nodes that read from it."""

    node: str
    sources: tuple[Source, ...]
    readers: tuple[str, ...]
    listen: tuple[str, ...]
    """Its own addresses by which the readers reach it."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """Nodes that reach each other over the same subnets: a cable, a bundle of cables, or a switch."""

    members: tuple[str, ...]
    rails: tuple[ipaddress.IPv4Network, ...]


def tree(head: str, ports: Mapping[str, Sequence[Port]]) -> tuple[dict[str, Way], tuple[str, ...]]:
    """Ways for the head and for every node that is reached from it over links that two nodes share.

    Each node feeds one other over each of its segments: on a switch that makes a chain, in which every port carries
    the image once in and once out however many nodes there are; over separate cables the head feeds each neighbour
    itself, and those feed the ones behind them. Rails between the same nodes are used together.

    Returns:
        The ways by node, and the nodes that no fast link reaches.
    """
    segments = _segments(ports)
    parent: dict[str, str] = {}
    over: dict[str, _Segment] = {}
    reached = [head]
    for node in reached:  # grows while it is walked: breadth first, so that the head's neighbours come first
        for segment in segments:
            if node not in segment.members:
                continue
            fresh = [name for name in segment.members if name not in reached]
            if fresh:
                parent[fresh[0]], over[fresh[0]] = node, segment
                reached.append(fresh[0])
    ways = {}
    for node in reached:
        readers = tuple(name for name in reached if parent.get(name) == node)
        sources = []
        if node in parent:
            sources.append(Source(parent[node], _addresses(ports[parent[node]], over[node].rails)))
            sources += _others(node, head, parent, segments, ports)
        served = {rail for segment in segments if node in segment.members for rail in segment.rails}
        ways[node] = Way(node, tuple(sources), readers, _addresses(ports[node], tuple(served)))
    return ways, tuple(sorted(set(ports) - set(reached)))


def meeting(ours: Sequence[Port], theirs: Sequence[Port]) -> list[tuple[str, str]]:
    """Pairs of addresses (ours, theirs) on networks that both have, the fastest first."""
    found = []
    for mine in ours:
        network = ipaddress.IPv4Interface(mine.address).network
        for other in theirs:
            if ipaddress.IPv4Interface(other.address).network == network:
                speed = min(mine.speed_mbit, other.speed_mbit)
                pair = (mine.address.partition("/")[0], other.address.partition("/")[0])
                found.append((-speed, pair))
    return [pair for _, pair in sorted(found)]


def _others(
    node: str,
    head: str,
    parent: Mapping[str, str],
    segments: Sequence[_Segment],
    ports: Mapping[str, Sequence[Port]],
) -> list[Source]:
    """Where to turn when the source fails: the head if a link reaches it, and nothing else.

    A node that is itself behind this one would wait for us; the head waits for nobody.
    """
    for segment in segments:
        if node in segment.members and head in segment.members and parent[node] != head:
            return [Source(head, _addresses(ports[head], segment.rails))]
    return []


def _segments(ports: Mapping[str, Sequence[Port]]) -> list[_Segment]:
    """Groups of nodes by the subnets that they share, the fastest first; a much slower network is left out."""
    members: dict[ipaddress.IPv4Network, set[str]] = {}
    speed: dict[ipaddress.IPv4Network, int] = {}
    for node, mine in ports.items():
        for port in mine:
            network = ipaddress.IPv4Interface(port.address).network
            members.setdefault(network, set()).add(node)
            speed[network] = min(speed.get(network, port.speed_mbit), port.speed_mbit)
    shared = {network: names for network, names in members.items() if len(names) > 1}
    fastest = max((speed[network] for network in shared), default=0)
    groups: dict[tuple[str, ...], list[ipaddress.IPv4Network]] = {}
    for network in sorted(shared):
        if speed[network] * SLOWER_IS_ANOTHER >= fastest:
            groups.setdefault(tuple(sorted(shared[network])), []).append(network)
    found = [_Segment(names, tuple(rails)) for names, rails in groups.items()]
    return sorted(found, key=lambda one: (-sum(speed[rail] for rail in one.rails), one.rails))


SLOWER_IS_ANOTHER = 4
"""A network with less than a quarter of the fastest one's speed is no rail: on a DGX Spark that is the 10GbE port."""


def _addresses(ports: Sequence[Port], rails: Sequence[ipaddress.IPv4Network]) -> tuple[str, ...]:
    found = []
    for port in ports:
        interface = ipaddress.IPv4Interface(port.address)
        if interface.network in rails:
            found.append(str(interface.ip))
    return tuple(found)
