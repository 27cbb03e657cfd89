"""Every command line that the agent ever runs as root, in one place: run from here, listed from here.

An ordinary account gets exactly these through sudoers: absolute programs, every argument fixed. What varies between
nodes (devices, addresses, folders) is written out when `enroll` lists them; what must be a file (exports, fstab) is
written by `enroll`, owned by root.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from node_agent import privileged
from node_agent.facts import cables, forwarding
from node_agent.facts.smart import CLASS as DRIVES
from node_agent.facts.source import Live
from node_agent.nfs import text
from node_agent.wire import Refused

Argv = tuple[str, ...]
JUMBO_MTU, PLAIN_MTU = 9000, 1500
SETTINGS: dict[str, tuple[int, ...]] = {
    "net.ipv4.conf.all.arp_ignore": (1, 0),
    "net.ipv4.conf.all.arp_announce": (2, 0),
    "net.ipv4.ip_forward": (1, 0),
}
"""Kernel settings that `doctor --fix` changes: the value that it sets, and the kernel's default that its undo sets."""
CDI_SPEC = "/etc/cdi/nvidia.yaml"
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\$?")
_WORD = re.compile(r"[A-Za-z0-9_./@%+,:=-]+")
"""No blank (sudo compares the arguments joined by blanks), and nothing that has a meaning in sudoers."""


class Right(NamedTuple):
    """One command line, what needs it, and why."""

    name: str
    argv: Argv
    verb: str
    why: str


def plug(device: str) -> Argv:
    """Read the plug's EEPROM."""
    return ("ethtool", "-m", device)


def smart(drive: str) -> Argv:
    """Read a drive's counters."""
    return ("nvme", "smart-log", f"/dev/{drive}", "-o", "json")


def mtu(device: str, size: int) -> Argv:
    """Set an interface's MTU until the next boot."""
    return ("ip", "link", "set", "dev", device, "mtu", str(size))


def setting(name: str, value: int | str) -> Argv:
    """Set a kernel setting until the next boot."""
    return ("sysctl", "-w", f"{name}={value}")


DROP_CACHES: Argv = ("sysctl", "-w", "vm.drop_caches=1")
CDI: Argv = ("nvidia-ctk", "cdi", "generate", f"--output={CDI_SPEC}")
NTP: Argv = ("timedatectl", "set-ntp", "true")
KEEP_EXPORTS: Argv = ("install", "-m", "0644", str(privileged.EXPORTS), text.EXPORTS_FILE)
DROP_EXPORTS: Argv = ("rm", "-f", text.EXPORTS_FILE)


def export(root: str, client: str, options: str) -> Argv:
    """Export a folder to one client."""
    return ("exportfs", "-o", options, f"{client}:{root}")


def unexport(root: str, client: str) -> Argv:
    """Take an export back."""
    return ("exportfs", "-u", f"{client}:{root}")


def mount(point: str) -> Argv:
    """Mount what the fstab says of this place."""
    return ("mount", point)


def unmount(point: str, *, lazy: bool = False) -> Argv:
    """Unmount; `lazy` takes the name away at once, also when the server is gone."""
    return ("umount", *(("-l",) if lazy else ()), point)


def facts_rights(devices: Iterable[str], drives: Iterable[str]) -> Iterator[Right]:
    """What `doctor` reads."""
    for device in devices:
        yield Right(f"plug {device}", plug(device), "doctor", "reads the plug of a fast link")
    for drive in drives:
        yield Right(f"smart {drive}", smart(drive), "doctor", "reads the drive's health")
    yield Right(
        "forwarding", forwarding.RULES, "doctor", "reads the forwarding rules; a ring of four needs them"
    )


def repair_rights(devices: Iterable[str]) -> Iterator[Right]:
    """What `doctor --fix` does after it was agreed to, and what its own undo runs."""
    for device in devices:
        for size in (JUMBO_MTU, PLAIN_MTU):
            yield Right(
                f"mtu {device} {size}",
                mtu(device, size),
                "doctor --fix",
                "reverts itself unless it is confirmed",
            )
    for name, values in SETTINGS.items():
        for value in values:
            yield Right(
                f"sysctl {name}={value}",
                setting(name, value),
                "doctor --fix",
                "reverts itself unless it is confirmed",
            )
    yield Right("drop caches", DROP_CACHES, "doctor --fix", "drops the clean page cache")
    yield Right("cdi", CDI, "doctor --fix", "only where the file does not exist")
    yield Right("ntp", NTP, "doctor --fix", "switches time synchronisation on")


def export_rights(root: str, clients: Iterable[str], options: str) -> Iterator[Right]:
    """What the node with the checkpoint does for `share` and `unshare`."""
    for client in clients:
        yield Right(
            f"export {client}", export(root, client, options), "share", "this folder, read-only, this client"
        )
        yield Right(f"unexport {client}", unexport(root, client), "unshare", "takes it back")
    yield Right("keep exports", KEEP_EXPORTS, "share", "outlasts a reboot; the file was written by enroll")
    yield Right("drop exports", DROP_EXPORTS, "unshare", "takes that back")


def mount_rights(point: str) -> Iterator[Right]:
    """What a node that reads the checkpoint over NFS does for `share` and `unshare`."""
    yield Right("mount", mount(point), "share", "what the line in /etc/fstab says, written by enroll")
    yield Right("unmount", unmount(point), "unshare", "takes it back")
    yield Right("unmount lazily", unmount(point, lazy=True), "unshare", "when the server is gone")


def fstab_line(server: str, root: str, options: str) -> str:
    """The line of an enrolled node: nothing on the share is a device or gains rights."""
    return text.fstab_line(f"{server}:{root}", str(privileged.MOUNT_POINT), f"{options},nosuid,nodev")


def of_node(
    devices: Iterable[str], drives: Iterable[str], args: dict[str, Any], *, uid: int, gid: int
) -> tuple[list[Right], str, str]:
    """Every right of a node with these devices and this part in the share; its exports file and fstab line.

    ``args`` as in `listed`. ``uid`` and ``gid`` are the account's: clients of its export act as it.
    """
    every = list(devices)
    found = [*facts_rights(every, drives), *repair_rights(every)]
    exports = fstab = ""
    if given := args.get("export"):
        root, _ = text.split(str(given["path"]))
        options, clients = text.export_options(uid, gid), sorted(map(str, given["clients"]))
        found += export_rights(root, clients, options)
        exports = text.exports_text(root, clients, options)
    if given := args.get("attach"):
        root = str(given["folder"]) or text.split(str(given["path"]))[0]
        found += mount_rights(str(privileged.MOUNT_POINT))
        fstab = fstab_line(str(given["server"]), root, str(given["options"]))
    return found, exports, fstab


def listed(args: dict[str, Any]) -> dict[str, Any]:
    """What `enroll` installs on this node, for the account that asks.

    Args: {"export": {"path", "clients"} | None, "attach": {"server", "path", "folder", "options"} | None}, the
    part of this node in the share. Returns {"account", "root", "rights": [{"name", "argv", "verb", "why"}], "exports",
    "fstab", "missing"}: `missing` are names of rights that sudo does not grant now; of a program that is not installed
    nothing is known. Refused for an account or a path that no sudoers line can name.
    """
    account = pwd.getpwuid(os.geteuid()).pw_name
    if not _ACCOUNT.fullmatch(account):
        raise Refused(f"the account is called {account[:80]!r}: sudoers cannot name it")
    live = Live()
    found, exports, fstab = of_node(
        cables.netdevs(live), live.names(DRIVES), args, uid=os.geteuid(), gid=os.getegid()
    )
    for right in found:
        if bad := [word for word in right.argv if not _WORD.fullmatch(word)]:
            raise Refused(
                f"{right.name}: {bad[0][:200]!r} has a blank or a character that sudoers cannot name"
            )
    return {
        "account": account,
        "root": privileged.is_root(),
        "rights": [{**right._asdict(), "argv": list(privileged.absolute(right.argv))} for right in found],
        "exports": exports,
        "fstab": fstab,
        "missing": [
            right.name
            for right in found
            if privileged.installed(right.argv) and not privileged.allowed(right.argv)
        ],
    }


def enrolled_exports(wanted: str) -> None:
    """Refused unless `enroll` wrote exactly this: the right to put the file in place is a right to its content."""
    try:
        written = privileged.EXPORTS.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"{privileged.EXPORTS}: {error.strerror}; ./start.sh enroll writes it") from None
    if written != wanted:
        raise Refused(
            f"{privileged.EXPORTS} was written for another folder or other clients: ./start.sh enroll writes it anew"
        )


def enrolled_mount(line: str, fstab: Path = Path("/etc/fstab")) -> None:
    """Refused unless the fstab has this very line."""
    try:
        lines = fstab.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise Refused(f"{fstab}: {error.strerror}") from None
    if line.rstrip("\n") not in lines:
        raise Refused(
            f"{fstab} has no line for this share ({line.partition(' ')[0]}): ./start.sh enroll writes it"
        )
