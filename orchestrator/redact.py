"""Take out of a capture what says whose machines these are, so that it can be shown to others. Pure.

Every value is replaced by the same stand-in everywhere, so whatever was equal stays equal and the checks say the
same: serial numbers, machine ids, host keys, UUIDs, MAC addresses, public addresses, host names, user names.
Private addresses stay: the layout of the links cannot be judged without them.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

MAC = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![0-9a-fA-F:])")
UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
HEX32 = re.compile(r"(?<![0-9a-fA-F])[0-9a-f]{32}(?![0-9a-fA-F])")
KEY = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
GROUPS = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4}(?![0-9a-fA-F:])")
IPV6 = re.compile(r"(?<![0-9a-fA-F:.])(?:[0-9a-fA-F]{1,4}:){1,7}(?::?[0-9a-fA-F]{0,4}){1,7}(?![0-9a-fA-F:.])")
COMMON_NAMES = frozenset(
    {"", "root", "localhost", "docker", "adm", "sudo", "nobody", "ubuntu", "spark", "nvidia"}
)
MAPPED = "0000:0000:0000:0000:0000:ffff:"


class _Stand:
    """Stand-ins handed out so far. Kept for one capture only."""

    def __init__(self) -> None:
        self.given: dict[tuple[str, str], str] = {}
        self.counts: dict[str, int] = {}

    def for_(self, kind: str, text: str, make: Callable[[int], str]) -> str:
        key = (kind, text.lower())
        if key not in self.given:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.given[key] = make(self.counts[kind])
        return self.given[key]


def redacted(data: dict[str, Any]) -> dict[str, Any]:
    """A copy of a capture (as JSON data) without what identifies its owner."""
    stand = _Stand()
    names = _names(data, stand)
    pattern = None
    if names:
        longest_first = sorted(names, key=len, reverse=True)
        pattern = re.compile(
            r"(?<![\w-])(?:" + "|".join(re.escape(name) for name in longest_first) + r")(?![\w-])"
        )

    def text_of(text: str) -> str:
        text = KEY.sub(lambda found: stand.for_("key", found[0], lambda n: f"SHA256:{'k' * 38}{n:05d}"), text)
        text = UUID.sub(
            lambda found: stand.for_("uuid", found[0], lambda n: f"00000000-0000-4000-8000-{n:012d}"), text
        )
        text = HEX32.sub(lambda found: stand.for_("id", found[0], lambda n: f"5e{n:030d}"), text)
        text = MAC.sub(lambda found: _mac(stand, found[0]), text)
        text = GROUPS.sub(lambda found: _gid(stand, found[0]), text)
        text = IPV6.sub(lambda found: _ipv6(stand, found[0]), text)
        text = IPV4.sub(lambda found: _ipv4(stand, found[0]), text)
        return pattern.sub(lambda found: names[found[0]], text) if pattern else text

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return text_of(value)
        if isinstance(value, dict):
            return {text_of(key): walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return value

    made = walk(data)
    return made if isinstance(made, dict) else {}


def _names(data: dict[str, Any], stand: _Stand) -> dict[str, str]:
    """Host names, user names and serial numbers → stand-ins. A host keeps one name in all its roles."""
    names: dict[str, str] = {}
    for index, (name, node) in enumerate(data.get("nodes", {}).items(), 1):
        names[name] = f"node-{index}"
        facts = (node.get("hardware") or {}).get("facts") or {}
        host, services = _value(facts, "host"), _value(facts, "services")
        hostname = host.get("hostname")
        if hostname and hostname not in COMMON_NAMES:
            names.setdefault(hostname, f"node-{index}")
            # avahi adds a number to a name that is taken: the stand-in must still differ from the host name
            avahi = services.get("avahi_name")
            if avahi and avahi not in names:
                names[avahi] = (
                    names[hostname] + avahi[len(hostname) :]
                    if avahi.startswith(hostname)
                    else f"avahi-{index}"
                )
        users = [host.get("user"), *(app.get("user") for app in _value(facts, "gpu").get("apps", []))]
        for user in users:
            if user and user not in COMMON_NAMES and user not in names:
                names[user] = stand.for_("user", user, lambda n: f"user-{n}")
        for plug in _value(facts, "plugs").values():
            if plug.get("serial"):
                names[plug["serial"]] = stand.for_("serial", plug["serial"], lambda n: f"SERIAL{n}")
    return names


def _value(facts: dict[str, Any], name: str) -> dict[str, Any]:
    value = (facts.get(name) or {}).get("value")
    return value if isinstance(value, dict) else {}


def _mac(stand: _Stand, text: str) -> str:
    return stand.for_("mac", text, lambda n: f"02:00:5e:00:{n // 256 % 256:02x}:{n % 256:02x}")


def _is_private(address: ipaddress.IPv4Address) -> bool:
    return address.is_private or address.is_loopback or address.is_link_local or address.is_unspecified


def _ipv4(stand: _Stand, text: str) -> str:
    """Public addresses move into 100.64.0.0/10; those of one /16 stay together, so networks stay networks."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return text
    if _is_private(address):
        return text
    a, b, c, d = text.split(".")
    prefix = stand.for_("net", f"{a}.{b}", lambda n: f"100.{64 + n % 64}")
    return f"{prefix}.{c}.{d}"


def _gid(stand: _Stand, text: str) -> str:
    """A GID: the IPv4 address inside, or the interface identifier, which is the MAC address in other words."""
    lower = text.lower()
    if lower.startswith(MAPPED):
        value = int(lower[len(MAPPED) :].replace(":", ""), 16)
        moved = _ipv4(stand, str(ipaddress.IPv4Address(value)))
        whole = int(ipaddress.IPv4Address(moved))
        return f"{MAPPED}{whole >> 16:04x}:{whole & 0xFFFF:04x}"
    head = "fe80:0000:0000:0000" if lower.startswith("fe80") else "2001:0db8:0000:0000"
    return stand.for_("gid", lower, lambda n: f"{head}:0000:5eff:fe00:{n:04x}")


def _ipv6(stand: _Stand, text: str) -> str:
    if GROUPS.fullmatch(text):
        return text  # a GID, dealt with before
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return text
    if address.is_loopback or address.is_unspecified:
        return text
    head = "fe80" if address.is_link_local else "2001:db8"
    return stand.for_("ipv6", str(address), lambda n: f"{head}::{n:x}")
