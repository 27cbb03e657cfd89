"""Which repairs the findings ask for: data, shown before anything is done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.checks.addresses import JUMBO_MTU, by_network
from orchestrator.checks.check import Node, Yard, value
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.frozen import Frozen


class Remedy(Frozen):
    """One repair on one node, for one finding.

    `kind` and `args` are those of the agent's closed list; `persist` says how to make it outlast a reboot, by hand.
    """

    check: str
    node: str
    kind: str
    args: dict[str, Any]
    what: str
    persist: str = ""
    network: bool = False


def remedies(findings: Iterable[Finding], yard: Yard) -> tuple[Remedy, ...]:
    """Safe repairs for what was found; findings without one are left to people."""
    nodes = {node.name: node for node in yard.seen}
    wanted: dict[tuple[str, str, str], Remedy] = {}
    for finding in findings:
        if finding.severity is Severity.UNKNOWN or finding.ignored:
            continue
        for remedy in _for(finding, nodes, yard):
            wanted.setdefault((remedy.node, remedy.kind, str(sorted(remedy.args.items()))), remedy)
    return tuple(wanted.values())


def _for(finding: Finding, nodes: dict[str, Node], yard: Yard) -> Iterator[Remedy]:
    node = nodes.get(finding.node)
    match finding.check:
        case "cx7.mtu" | "cx7.mtu1500":
            yield from _mtu(finding, yard)
        case "cx7.subnet_same" if node:
            for name, number in (("arp_ignore", 1), ("arp_announce", 2)):
                yield _sysctl(finding, f"net.ipv4.conf.all.{name}", number)
        case "net.ring_fwd" if node and "ip_forward" in finding.measured:
            yield _sysctl(finding, "net.ipv4.ip_forward", 1)
        case "mem.cache" if node:
            what = "write dirty pages back and drop the clean page cache"
            yield Remedy(check=finding.check, node=finding.node, kind="drop_caches", args={}, what=what)
        case "docker.group" if node:
            host = value(node.facts.host)
            if host is not None and host.user:
                what = f"put {host.user} into the group docker (takes effect at the next login)"
                args = {"user": host.user}
                yield Remedy(
                    check=finding.check, node=finding.node, kind="docker_group", args=args, what=what
                )
        case "docker.cdi" if node:
            what = "write /etc/cdi/nvidia.yaml with nvidia-ctk"
            yield Remedy(check=finding.check, node=finding.node, kind="cdi", args={}, what=what)
        case "clock.sync" if node:
            what = "switch time synchronisation on"
            yield Remedy(check=finding.check, node=finding.node, kind="ntp", args={}, what=what)
        case _:
            return


def _mtu(finding: Finding, yard: Yard) -> Iterator[Remedy]:
    """The larger MTU of a link's ends on all of them; 9000 where all have 1500."""
    for ends in by_network(yard).values():
        sizes = [end.function.mtu or 0 for end in ends]
        wanted = max(sizes) if finding.check == "cx7.mtu" else JUMBO_MTU
        if finding.check == "cx7.mtu" and len(set(sizes)) == 1:
            continue
        for end in ends:
            if end.function.mtu != wanted and end.function.netdev:
                device = end.function.netdev
                yield Remedy(
                    check=finding.check,
                    node=end.node.name,
                    kind="mtu",
                    args={"device": device, "mtu": wanted},
                    what=f"set the MTU of {device} from {end.function.mtu} to {wanted} until the next boot",
                    persist=f"in the netplan file that names {device}: mtu: {wanted}; then netplan apply",
                    network=True,
                )


def _sysctl(finding: Finding, name: str, number: int) -> Remedy:
    return Remedy(
        check=finding.check,
        node=finding.node,
        kind="sysctl",
        args={"name": name, "value": number},
        what=f"sysctl -w {name}={number} until the next boot",
        persist=f"echo {name}={number} > /etc/sysctl.d/90-sparkyard.conf",
        network=name.startswith("net."),
    )
