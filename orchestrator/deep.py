"""What needs traffic or load: pings between the link ends, and the probes of `doctor --deep`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from orchestrator.checks.addresses import End, by_network
from orchestrator.checks.bandwidth import BOTH
from orchestrator.checks.check import Node as SeenNode
from orchestrator.checks.check import Yard
from orchestrator.model.fabric import Peer
from orchestrator.model.hardware import Fact, Hardware
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Node, Progressed, Reply, reply

PING_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = {
    "burn": 60.0,
    "gemv": 120.0,
    "nvme": 180.0,
    "rdma": 40.0,
    "listen": 40.0,
    "allreduce": 180.0,
}
LISTEN_LEAD_S = 1.0  # perftest's listener needs a moment before the sender may come
FIRST_PORT = 18515  # perftest's own default
NO_ENGINE = "a collective needs the engine on every node (./start.sh build)"

Say = Callable[[str, dict[str, Any]], None]
"""Told of progress: node, what it reported."""

Collective = Mapping[str, dict[str, Any]]


def targets(yard: Yard) -> dict[str, list[tuple[str, str]]]:
    """Node → (device, address) of every link end that it should reach. Recorded links lead nowhere: left out."""
    found: dict[str, list[tuple[str, str]]] = {}
    for ends in by_network(yard).values():
        for end in ends:
            links = end.node.facts.links
            if links is None or links.origin != "live":
                continue
            found.setdefault(end.node.name, []).extend(
                (end.device, other.address) for other in ends if other.node.name != end.node.name
            )
    return found


async def with_pings(nodes: Mapping[str, Node], yard: Yard) -> Yard:
    """The yard with the fact `peers` of every node that could be asked."""
    wanted = targets(yard)

    async def one(seen: SeenNode) -> SeenNode:
        if seen.hardware is None or not wanted.get(seen.name):
            return seen
        pairs = [list(pair) for pair in wanted[seen.name]]
        answer = await reply(
            nodes[seen.name], Ask("ping_peers", {"targets": pairs}), timeout_s=PING_TIMEOUT_S
        )
        return (
            seen
            if answer.failure is not None
            else replace(seen, hardware=_with_peers(seen.hardware, answer.value))
        )

    return replace(yard, nodes=tuple(await asyncio.gather(*(one(seen) for seen in yard.nodes))))


def _with_peers(hardware: Hardware, value: dict[str, Any]) -> Hardware:
    try:
        peers = tuple(Peer.model_validate(row) for row in value.get("peers", []))
    except ValidationError:
        return hardware
    facts = hardware.facts.model_copy(update={"peers": Fact[tuple[Peer, ...]](origin="live", value=peers)})
    return hardware.model_copy(update={"facts": facts})


@dataclass(frozen=True, slots=True)
class Stream:
    """One RDMA measurement: from one end to another."""

    source: End
    target: End
    port: int

    @property
    def usable(self) -> bool:
        """Both devices have an address that RoCE v2 can use."""
        return bool(_gid_index(self.source) is not None and _gid_index(self.target) is not None)


def _gid_index(end: End) -> int | None:
    """The RoCE v2 row of the end's own address."""
    return next((row.index for row in end.function.gids if row.routable_v2), None)


def streams(yard: Yard) -> list[Stream]:
    """Each pair of ends that share a network, in both directions."""
    found: list[Stream] = []
    for ends in by_network(yard).values():
        for source in ends:
            for target in ends:
                if source.node.name != target.node.name and source.function.rdma and target.function.rdma:
                    found.append(Stream(source, target, FIRST_PORT + len(found) % 1000))
    return [stream for stream in found if stream.usable]


async def probe_all(
    nodes: Mapping[str, Node],
    yard: Yard,
    say: Say,
    collective: Collective | None = None,
    *,
    lead_s: float = LISTEN_LEAD_S,
) -> tuple[Failure, ...]:
    """Run every probe, kind by kind: side by side on all nodes what loads a node, one after the other what loads links.

    `collective` holds the arguments of each node's rank of an all-reduce; None where the engine is not on all nodes.
    Results stay on the nodes for a day. Returns what could not be run, and why.
    """
    names = [seen.name for seen in yard.seen]
    failures: list[Failure] = []
    for kind in ("burn", "gemv", "nvme"):
        answers = await asyncio.gather(*(_probe(nodes[name], kind, {}, say) for name in names))
        failures += [answer.failure for answer in answers if answer.failure is not None]
    failures += await _rdma(nodes, yard, say, lead_s)
    if collective is None or set(collective) != set(names):
        args = {"missing": {"allreduce": NO_ENGINE}}
        work = (reply(nodes[name], Ask("keep_probes", args), timeout_s=PING_TIMEOUT_S) for name in names)
    else:
        work = (_probe(nodes[name], "allreduce", collective[name], say) for name in names)
    failures += [answer.failure for answer in await asyncio.gather(*work) if answer.failure is not None]
    return tuple(failures)


async def _probe(node: Node, kind: str, args: dict[str, Any], say: Say) -> Reply:
    last = Reply({}, Failure(node.name, "protocol", f"probe {kind}: no reply"))
    request = Ask("probe", {"probe": kind, **args})
    async for message in node.ask(request, timeout_s=PROBE_TIMEOUT_S[kind]):
        match message:
            case Progressed(data=data):
                say(node.name, data)
            case Reply():
                last = message
    return last


async def _measure(
    nodes: Mapping[str, Node], stream: Stream, say: Say, lead_s: float
) -> tuple[float | None, Failure | None]:
    """One stream: the target listens, the source sends. Gb/s, or why there is none."""
    source, target = stream.source, stream.target
    listen = {"device": target.function.rdma, "gid_index": _gid_index(target), "port": stream.port}
    listening = asyncio.create_task(_probe(nodes[target.node.name], "listen", listen, say))
    await asyncio.sleep(lead_s)
    send = {
        "device": source.function.rdma,
        "gid_index": _gid_index(source),
        "port": stream.port,
        "address": target.address,
    }
    sent = await _probe(nodes[source.node.name], "rdma", send, say)
    heard = await listening
    failure = sent.failure or heard.failure
    return (None, failure) if failure is not None else (float(sent.value["gbps"]), None)


async def _rdma(nodes: Mapping[str, Node], yard: Yard, say: Say, lead_s: float) -> list[Failure]:
    """Each twin alone in each direction, then both twins of a pair of nodes together."""
    planned = streams(yard)
    failures: list[Failure] = []
    results: dict[str, list[dict[str, Any]]] = {}

    def keep(stream: Stream, netdev: str, gbps: float) -> None:
        row = {
            "unix_s": yard.now_unix_s,
            "netdev": netdev,
            "peer": stream.target.node.name,
            "gbps": round(gbps, 2),
        }
        results.setdefault(stream.source.node.name, []).append(row)
        say(stream.source.node.name, {"probe": "rdma", **row})

    for stream in planned:
        gbps, failure = await _measure(nodes, stream, say, lead_s)
        if failure is not None:
            failures.append(failure)
        elif gbps is not None:
            keep(stream, stream.source.device, gbps)
    twins: dict[tuple[str, str, str | None], list[Stream]] = {}
    for stream in planned:
        key = (stream.source.node.name, stream.target.node.name, stream.source.function.cage)
        twins.setdefault(key, []).append(stream)
    for pair in twins.values():
        if len(pair) < 2 or failures:
            continue
        both = await asyncio.gather(*(_measure(nodes, stream, say, lead_s) for stream in pair))
        rates = [gbps for gbps, _ in both if gbps is not None]
        if len(rates) == len(pair):
            keep(pair[0], BOTH, sum(rates))
    for name, rows in results.items():
        answer = await reply(nodes[name], Ask("keep_probes", {"rdma": rows}), timeout_s=PING_TIMEOUT_S)
        failures += [answer.failure] if answer.failure is not None else []
    return failures
