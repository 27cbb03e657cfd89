"""Netplan files and NetworkManager profiles that meddle with the fast links."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.checks.check import FORUM, Check, E, Hit, Node, W, value

MIN_DHCP_FAILURES = 3  # one is a cable that was just plugged in
PLAYBOOK = "https://github.com/NVIDIA/dgx-spark-playbooks"


def netplan_mode(node: Node) -> Iterable[Hit]:
    named = {item.path for item in value(node.facts.netplan_contents) or () if item.interfaces}
    for item in value(node.facts.netplan) or ():
        about_links = item.path in named or "cx7" in item.path
        if about_links and item.mode is not None and item.mode & 0o077:
            yield Hit(f"{item.path} has mode {item.mode:o}")


def netplan_second(node: Node) -> Iterable[Hit]:
    files: dict[str, list[str]] = {}
    own = {item.netdev for item in node.functions}
    for item in value(node.facts.netplan_contents) or ():
        for interface in item.interfaces:
            if interface in own:
                files.setdefault(interface, []).append(item.path)
    double = {name: paths for name, paths in files.items() if len(paths) > 1}
    if double:
        name, paths = min(double.items())
        yield Hit(f"{', '.join(sorted(double))}: named in {' and '.join(paths)}", link=name)


def nm_dhcp(node: Node) -> Iterable[Hit]:
    services = value(node.facts.services)
    failures = services.dhcp_failures if services else ()
    if len(failures) >= MIN_DHCP_FAILURES:
        yield Hit(f"{len(failures)} times ip-config-unavailable since boot", evidence=failures[-1])


CHECKS = (
    Check(
        "cx7.netplan_mode",
        ("netplan",),
        "mode 600",
        "readable by others: netplan complains and may ignore it",
        W,
        "chmod 600 FILE",
        f"{PLAYBOOK}",
        each=netplan_mode,
    ),
    Check(
        "cx7.netplan_second",
        ("netplan_contents", "links"),
        "each link device in one netplan file",
        "in two: the last one wins, at the next boot",
        E,
        "merge the two files",
        "https://github.com/spark-arena/sparkrun (cx7_detect.sh)",
        each=netplan_second,
    ),
    Check(
        "cx7.nm_dhcp",
        ("services",),
        "NetworkManager asks for no address on the links",
        "a profile with DHCP fails again and again (ip-config-unavailable)",
        W,
        "nmcli connection modify PROFILE connection.autoconnect no",
        f"{FORUM}377220",
        each=nm_dhcp,
    ),
)
