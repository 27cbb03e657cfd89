"""Which cage of which node is cabled to which, from facts alone; and what is wrong with that. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from orchestrator.checks.addresses import by_network
from orchestrator.checks.check import Check, E, Hit, W, Yard, links_of, value
from orchestrator.model.finding import Confidence
from orchestrator.model.profile import RING_TP

Shape = Literal["alone", "pair", "triangle", "ring", "switch", "incomplete"]


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """A cage of a node."""

    node: str
    cage: str

    def __str__(self) -> str:
        return f"{self.node} {self.cage}"


@dataclass(frozen=True, slots=True)
class Cable:
    """Two cages that are joined; by their networks, by the cable's serial number, or by both."""

    ends: tuple[Port, Port]
    networks: tuple[str, ...]
    proven: bool
    """Both plugs carry the same serial number."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the nodes are joined."""

    shape: Shape
    cables: tuple[Cable, ...]
    switched: tuple[Port, ...]
    """Cages that share a network with more than one other node."""
    empty: tuple[Port, ...]
    crossed: tuple[str, ...]
    """Cables whose serial numbers contradict the addresses, in words."""


def _serials(yard: Yard) -> dict[str, set[Port]]:
    found: dict[str, set[Port]] = {}
    for node in yard.seen:
        plugs = value(node.facts.plugs) or {}
        for item in node.functions:
            plug = plugs.get(item.netdev or "")
            if plug is not None and plug.serial and item.cage:
                found.setdefault(plug.serial, set()).add(Port(node.name, item.cage))
    return found


def layout(yard: Yard) -> Layout:
    """The layout that the facts of the nodes that answered show."""
    networks: dict[tuple[Port, Port], list[str]] = {}
    switched: set[Port] = set()
    for network, ends in by_network(yard).items():
        ports = sorted(
            {Port(end.node.name, end.function.cage or end.device) for end in ends if end.function.up}
        )
        if len({port.node for port in ports}) > 2:
            switched.update(ports)
        elif len(ports) == 2:
            networks.setdefault((ports[0], ports[1]), []).append(str(network))
    pairs = {
        (both[0], both[1])
        for ports in _serials(yard).values()
        if len(both := sorted(ports)) == 2 and both[0].node != both[1].node
    }
    joined = {port for pair in networks for port in pair}
    crossed = [
        f"the cable of {a} ends at {b}, but by its address {a} belongs to {other}"
        for a, b in sorted(pairs)
        for pair in networks
        for other in pair
        if a in pair and other != a and other != b and (a, b) not in networks
    ]
    for pair in pairs:
        if pair[0] not in joined and pair[1] not in joined and not set(pair) & switched:
            networks.setdefault(pair, [])
    cables = tuple(
        Cable(pair, tuple(sorted(found)), pair in pairs) for pair, found in sorted(networks.items())
    )
    used = {port for cable in cables for port in cable.ends} | switched
    every = {Port(node.name, item.cage) for node in yard.seen for item in node.functions if item.cage}
    shape = _shape({node.name for node in yard.seen}, cables, switched)
    return Layout(
        shape, cables, tuple(sorted(switched)), tuple(sorted(every - used)), tuple(dict.fromkeys(crossed))
    )


def _shape(names: set[str], cables: tuple[Cable, ...], switched: set[Port]) -> Shape:
    if len(names) == 1:
        return "alone"
    if {port.node for port in switched} == names:
        return "switch"
    pairs = {frozenset((a.node, b.node)) for cable in cables for a, b in [cable.ends]}
    if len(names) == 2 and pairs:
        return "pair"
    if len(names) == 3 and len(pairs) == 3:
        return "triangle"
    if len(names) > 3 and len(pairs) == len(names) and _is_cycle(names, pairs):
        return "ring"
    return "incomplete"


def _is_cycle(names: set[str], pairs: set[frozenset[str]]) -> bool:
    around = {
        name: {other for pair in pairs if name in pair for other in pair if other != name} for name in names
    }
    if any(len(others) != 2 for others in around.values()):
        return False
    seen, todo = set[str](), [min(names)]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += around[name]
    return seen == names


def draw(found: Layout) -> list[str]:
    """The layout as lines of text."""
    drawn: list[str] = [found.shape]
    for cable in found.cables:
        proof = "same serial number" if cable.proven else "by address"
        drawn.append(
            f"  {cable.ends[0]} ══ {cable.ends[1]}   {' '.join(cable.networks) or 'no addresses'}   ({proof})"
        )
    if found.switched:
        drawn.append(f"  switch: {', '.join(str(port) for port in found.switched)}")
    if found.empty:
        drawn.append(f"  not joined: {', '.join(str(port) for port in found.empty)}")
    return drawn


def cabling(yard: Yard) -> Iterable[Hit]:
    if len(yard.seen) < len(yard.nodes) or any(links_of(node) is None for node in yard.seen):
        return
    if yard.topology in (None, "single-host"):
        return
    found = layout(yard)
    names = sorted(node.name for node in yard.seen)
    if yard.topology == "triangle":
        joined = {
            frozenset((a.node, b.node)) for cable in found.cables if cable.networks for a, b in [cable.ends]
        }
        for pair in combinations(names, 2):
            if frozenset(pair) not in joined:
                yield Hit(f"no working link between {pair[0]} and {pair[1]}", link=f"{pair[0]}-{pair[1]}")
    elif yard.topology == "switch" and len(names) > 2 and found.shape != "switch":
        outside = sorted(set(names) - {port.node for port in found.switched})
        yield Hit(f"{', '.join(outside) or 'some nodes'}: not in the network that the others share")
    elif yard.topology == "ring" and found.shape not in ("ring", "triangle", "pair"):
        yield Hit(f"the links form no ring: {'; '.join(draw(found)[1:])[:300]}")


def crossed(yard: Yard) -> Iterable[Hit]:
    texts = layout(yard).crossed
    if texts:
        yield Hit(texts[0], evidence="; ".join(texts[1:]))


def same_cage(yard: Yard) -> Iterable[Hit]:
    found = layout(yard)
    if found.shape not in ("triangle", "ring"):
        return
    for cable in found.cables:
        if cable.ends[0].cage == cable.ends[1].cage:
            yield Hit(
                f"{cable.ends[0]} to {cable.ends[1]}", link=f"{cable.ends[0].node}-{cable.ends[1].node}"
            )


def ring(yard: Yard) -> Iterable[Hit]:
    is_ring = yard.topology == "ring" or (yard.topology is None and layout(yard).shape == "ring")
    if is_ring and yard.tp == RING_TP and not yard.ring_library:
        yield Hit("a ring of four nodes at TP4 with the NCCL library of the image")


CHECKS = (
    Check(
        "topo.cabling",
        ("links",),
        "every link that the declared topology needs",
        "one is missing",
        E,
        "plug the cable in, or correct the addresses at its two ends",
        "https://github.com/NVIDIA/dgx-spark-playbooks (connect-three-sparks)",
        whole=cabling,
        needs_peers=True,
    ),
    Check(
        "topo.crossed",
        ("links", "plugs"),
        "addresses that fit the cables",
        "a cable leads to another node than the addresses say",
        E,
        "swap the two plugs, or the addresses",
        "https://github.com/eugr/spark-vllm-docker/issues/233",
        whole=crossed,
        needs_peers=True,
    ),
    Check(
        "topo.same_cage",
        ("links",),
        "in a triangle or ring, cables from p0 to p1",
        "from p0 to p0 or p1 to p1: NCCL pairs devices by index and hangs",
        W,
        "swap the two plugs at one of the nodes",
        "https://github.com/luxingcom/aicad-nccl-optimization/issues/1",
        whole=same_cage,
        confidence=Confidence.MEDIUM,
        needs_peers=True,
    ),
    Check(
        "topo.ring_tp4",
        ("links",),
        "a switch for four nodes, or an NCCL library that can run a ring",
        "a ring at TP4 with stock NCCL: it never connects",
        E,
        "use a switch, or name a library that runs a ring in the profile: nccl: {library, sha256, source}",
        "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/pull/19",
        whole=ring,
        needs_peers=True,
    ),
)
