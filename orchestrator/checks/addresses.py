"""Addresses, MTU, GIDs, routes and files of the fast links."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.checks.check import Check, E, Hit, Node, W, Yard, value
from orchestrator.model.fabric import Function
from orchestrator.model.finding import Confidence

JUMBO_MTU = 9000
USUAL_MTU = 1500
ROCE_MTU = 4096  # largest RoCE MTU; needs a network MTU of about 4200
ROCE_FLOOR = 4200
PLAYBOOK = "https://github.com/NVIDIA/dgx-spark-playbooks"
Network = ipaddress.IPv4Network


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link: a function with one of its IPv4 addresses."""

    node: Node
    function: Function
    address: str
    network: Network

    @property
    def device(self) -> str:
        return self.function.netdev or self.function.pci


def ends_of(node: Node) -> Iterator[End]:
    """Every IPv4 address of the node's ConnectX-7, link-local ones too. Unreadable addresses are left out."""
    for function in node.functions:
        for text in function.ipv4:
            try:
                found = ipaddress.IPv4Interface(text)
            except ValueError:
                continue
            yield End(node, function, str(found.ip), found.network)


def by_network(yard: Yard) -> dict[Network, list[End]]:
    """Ends that are up and share a network: two at a cable, all nodes at a switch. Link-local ones never pair."""
    found: dict[Network, list[End]] = {}
    for node in yard.seen:
        for end in ends_of(node):
            if end.function.up and not end.network.is_link_local:
                found.setdefault(end.network, []).append(end)
    return {network: ends for network, ends in found.items() if len({end.node.name for end in ends}) > 1}


def mtu(yard: Yard) -> Iterable[Hit]:
    for network, ends in by_network(yard).items():
        sizes = [end.function.mtu for end in ends if end.function.mtu]
        if len(set(sizes)) < 2:
            continue
        wanted = max(set(sizes), key=lambda size: (sizes.count(size), size))
        for end in ends:
            if end.function.mtu and end.function.mtu != wanted:
                others = ", ".join(f"{o.node.name} {o.device} {o.function.mtu}" for o in ends if o is not end)
                text = f"MTU {end.function.mtu} on {network}"
                yield Hit(text, node=end.node.name, link=end.device, evidence=f"other end: {others}")


def mtu1500(yard: Yard) -> Iterable[Hit]:
    small = []
    for ends in by_network(yard).values():
        sizes = {end.function.mtu for end in ends}
        if len(sizes) == 1 and max(size or JUMBO_MTU for size in sizes) <= USUAL_MTU:
            small += [f"{end.node.name} {end.device}" for end in ends]
    if small:
        yield Hit(
            f"MTU {USUAL_MTU} on every end of {len(small)} links", evidence=", ".join(sorted(small))[:300]
        )


def active_mtu(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        if item.up and (item.mtu or 0) >= ROCE_FLOOR and item.active_mtu and item.active_mtu < ROCE_MTU:
            yield Hit(
                f"RoCE MTU {item.active_mtu} under a network MTU of {item.mtu}", link=item.netdev or item.pci
            )


def vf_mtu(node: Node) -> Iterable[Hit]:
    links = value(node.facts.links)
    parent = max((item.mtu or 0 for item in node.functions if item.up), default=0)
    for item in links.functions if links else ():
        if item.virtual and item.mtu and item.mtu < parent:
            yield Hit(
                f"MTU {item.mtu} on a virtual function, {parent} on its parent", link=item.netdev or item.pci
            )


def ipv4(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        if item.up and not item.ipv4:
            own = ", ".join(item.addresses) or "none"
            yield Hit("no IPv4 address", link=item.netdev or item.pci, evidence=f"addresses: {own}")


def linklocal(node: Node) -> Iterable[Hit]:
    for end in ends_of(node):
        if end.network.is_link_local:
            yield Hit(end.address, link=end.device)


def subnet_same(node: Node) -> Iterable[Hit]:
    seen: dict[Network, list[str]] = {}
    for end in ends_of(node):
        if not end.network.is_link_local:
            seen.setdefault(end.network, []).append(end.device)
    for network, devices in seen.items():
        if len(set(devices)) > 1:
            yield Hit(f"{' and '.join(sorted(set(devices)))} share {network}", link=devices[0])


def subnet_dup(yard: Yard) -> Iterable[Hit]:
    owners: dict[str, list[End]] = {}
    for node in yard.seen:
        for end in ends_of(node):
            if not end.network.is_link_local:
                owners.setdefault(end.address, []).append(end)
    for address, ends in owners.items():
        if len(ends) > 1:
            shown = " and ".join(f"{end.node.name} {end.device}" for end in ends)
            yield Hit(f"{address} on {shown}", node=ends[-1].node.name, link=ends[-1].device)


def subnet_overlap(node: Node) -> Iterable[Hit]:
    network = value(node.facts.network)
    own = {item.netdev for item in node.functions}
    for interface in network.interfaces if network else ():
        if interface.name in own or interface.name == "lo":
            continue
        for text in interface.addresses:
            if ":" in text:
                continue
            try:
                other = ipaddress.IPv4Interface(text).network
            except ValueError:
                continue
            for end in ends_of(node):
                if end.network.overlaps(other):
                    yield Hit(f"{end.network} overlaps {other} of {interface.name}", link=end.device)


def default_route(node: Node) -> Iterable[Hit]:
    network = value(node.facts.network)
    own = {item.netdev for item in node.functions if item.netdev}
    for route in network.routes if network else ():
        if route.to == "default" and route.device in own:
            yield Hit(f"default via {route.gateway} on {route.device}", link=route.device or "")


def peer(node: Node) -> Iterable[Hit]:
    for item in value(node.facts.peers) or ():
        if item.answers is False:
            yield Hit(f"{item.address} does not answer through {item.device}", link=item.device)


def jumbo(node: Node) -> Iterable[Hit]:
    sizes = {item.netdev: item.mtu or 0 for item in node.functions}
    for item in value(node.facts.peers) or ():
        if item.answers and item.answers_jumbo is False and sizes.get(item.device, 0) >= JUMBO_MTU:
            text = f"{item.address} answers 56 bytes and not 8972 through {item.device}"
            yield Hit(text, link=item.device)


def gid(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        # a table without any row was not read: even a device without an address has a link-local GID
        if item.up and item.gids and not any(row.routable_v2 for row in item.gids):
            kinds = ", ".join(f"{row.index}: {row.type}" for row in item.gids)
            yield Hit(
                "no RoCE v2 row with an IPv4 address", link=item.netdev or item.pci, evidence=f"GIDs {kinds}"
            )


def gid_pin(node: Node, yard: Yard) -> Iterable[Hit]:
    if len([item for item in node.functions if item.up]) < 2:
        return
    nccl = value(node.facts.nccl)
    places = {"/etc/nccl.conf": (nccl.config or {}) if nccl else {}}
    places["the system's environment"] = nccl.environment if nccl else {}
    docker = value(node.facts.docker)
    for container in docker.containers if docker else ():
        if any(key.startswith("sparkyard") for key in container.labels):
            continue  # ours: looked up on this node when it was started
        places[f"container {container.name}"] = container.environment
    places["the profile"] = dict(yard.environment)
    for place, settings in places.items():
        if "NCCL_IB_GID_INDEX" in settings:
            yield Hit(f"NCCL_IB_GID_INDEX={settings['NCCL_IB_GID_INDEX']} in {place}")


CHECKS = (
    Check(
        "cx7.mtu",
        ("links",),
        "the same MTU at all ends of a link",
        "one end differs: large packets vanish and NCCL hangs",
        E,
        "ip link set DEVICE mtu 9000 on that node, and in its netplan file; a NetworkManager profile needs "
        "`nmcli connection up` as well",
        f"{PLAYBOOK}/issues/25, field reports",
        whole=mtu,
        needs_peers=True,
    ),
    Check(
        "cx7.mtu1500",
        ("links",),
        f"MTU {JUMBO_MTU} everywhere",
        f"{USUAL_MTU} everywhere: about 3 % less all-reduce bandwidth",
        W,
        "set MTU 9000 on every end and on the switch",
        f"{PLAYBOOK}/issues/25",
        whole=mtu1500,
        needs_peers=True,
    ),
    Check(
        "cx7.jumbo",
        ("links", "peers"),
        "8972-byte packets pass unfragmented both ways",
        "only small packets pass although both ends say 9000",
        E,
        "raise the switch's L2MTU to 9100 or more",
        "https://github.com/vroomfondel/dgxarley",
        each=jumbo,
        deep="ping",
        needs_peers=True,
    ),
    Check(
        "cx7.active_mtu",
        ("links",),
        f"RoCE MTU {ROCE_MTU} where the network MTU is {ROCE_FLOOR} or more",
        "1024 under MTU 9000: about 40 % less prefill",
        W,
        "set the link down and up again, or reload mlx5_ib",
        "https://github.com/0xSero/local-ai-registry/pull/55",
        each=active_mtu,
    ),
    Check(
        "cx7.vf_mtu",
        ("links",),
        "virtual functions have their parent's MTU",
        "smaller: it is not inherited",
        W,
        "set the MTU of the virtual function in netplan",
        "https://github.com/vroomfondel/dgxarley NCCL_BANDWIDTH_PROFILING.md",
        each=vf_mtu,
    ),
    Check(
        "cx7.ipv4",
        ("links", "network"),
        "one IPv4 address for each twin that is up",
        "none: only link-local GIDs, queue pairs hang",
        E,
        "give the device an address in netplan",
        f"{PLAYBOOK} (connect-two-sparks)",
        each=ipv4,
    ),
    Check(
        "cx7.linklocal",
        ("links",),
        "static addresses",
        "169.254.x.x: changes at every start",
        W,
        "give the device a static address in netplan",
        f"{PLAYBOOK} (old link-local layout)",
        each=linklocal,
    ),
    Check(
        "cx7.subnet_same",
        ("links",),
        "the twins of a node in different networks",
        "two devices of one node in one network: answers may leave through the other one",
        W,
        "move one twin to a network of its own, or set arp_ignore=1 and arp_announce=2",
        "https://github.com/eugr/spark-vllm-docker/issues/270",
        each=subnet_same,
        confidence=Confidence.MEDIUM,
    ),
    Check(
        "cx7.subnet_dup",
        ("links",),
        "every address once",
        "the same address on two nodes",
        E,
        "renumber one of them",
        "https://github.com/spark-arena/sparkrun (cx7_detect.sh)",
        whole=subnet_dup,
        needs_peers=True,
    ),
    Check(
        "cx7.subnet_overlap",
        ("links", "network"),
        "link networks apart from the LAN",
        "a link network overlaps the network of another interface",
        E,
        "renumber the link",
        "https://github.com/spark-arena/sparkrun (used_subnets)",
        each=subnet_overlap,
    ),
    Check(
        "cx7.default_route",
        ("links", "network"),
        "default route over RJ45 or Wi-Fi",
        "over a ConnectX-7 port",
        E,
        "remove the gateway from that device's netplan entry",
        "field report (fabric verification script of a public recipe)",
        each=default_route,
    ),
    Check(
        "cx7.peer",
        ("links", "peers"),
        "every peer answers through every twin",
        "an address at the other end of a link does not answer",
        E,
        "check the cable and the addresses at both ends",
        f"{PLAYBOOK}",
        each=peer,
        deep="ping",
        needs_peers=True,
    ),
    Check(
        "cx7.gid",
        ("links",),
        "a RoCE v2 row with an IPv4 address for each device that is up",
        "none",
        E,
        "give the device an IPv4 address",
        "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/pull/9",
        each=gid,
    ),
    Check(
        "cx7.gid_pin",
        ("links", "nccl"),
        "NCCL_IB_GID_INDEX not set where several devices are used",
        "set: the right index differs from device to device and changes at a reboot; an empty value means 0",
        W,
        "remove the setting: the index is looked up on each node at every start",
        "https://github.com/Blackwellboy/model-serving-minefield traps/runtime/114",
        within=gid_pin,
    ),
)
