"""Lines of exports, fstab and /proc/mounts for the checkpoint's share, and what a mount became. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MARK = "# sparkyard"
EXPORTS_FILE = "/etc/exports.d/sparkyard.exports"
"""Read by `exportfs -r` at every start of the NFS server: what stands here survives a reboot."""
SNAPSHOT = re.compile(r"^(?P<root>.*/(?:models|datasets)--[^/]+)/(?P<inside>snapshots/[^/]+)/?$")
NOT_EXPORTABLE = {
    "overlay": "the kernel's NFS server cannot export an overlay (a container's root): use a folder on the host's disk",
    "tmpfs": "a memory file system has no stable file handles: use a folder on the disk",
    "nfs": "this folder is itself an NFS mount: share it from the node that has the disk",
    "nfs4": "this folder is itself an NFS mount: share it from the node that has the disk",
}


@dataclass(frozen=True)
class Mount:
    """One line of /proc/mounts."""

    source: str
    point: str
    kind: str
    options: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """Value of ``name=value``; empty for a bare ``name``; None when it is not there."""
        for option in self.options:
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None


def split(path: str) -> tuple[str, str]:
    """What to export, and where the checkpoint lies inside it.

    A snapshot of the Hugging Face cache holds links to `../../blobs`: its repository folder is exported, because a
    client that sees the snapshot alone sees links that lead nowhere.
    """
    found = SNAPSHOT.match(path)
    return (found["root"], found["inside"]) if found else (path.rstrip("/") or "/", "")


def export_options(uid: int, gid: int) -> str:
    """Read-only, and every client acts as the owner of the files: homes with 0750 and files with 0600 work."""
    return f"ro,sync,no_subtree_check,all_squash,anonuid={uid},anongid={gid},sec=sys"


def exports_text(path: str, clients: Sequence[str], options: str) -> str:
    """The whole exports file. Spaces and the like in the path are written as octal, as exports(5) wants it."""
    plain = "".join(char if char.isalnum() or char in "/._-+@:," else _octal(char) for char in path)
    words = " ".join(f"{client}({options})" for client in sorted(set(clients)))
    return f"{MARK}: the checkpoint, for the other nodes' fast links only\n{plain} {words}\n"


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode())


def fstab_line(source: str, point: str, options: str) -> str:
    """A line that mounts at boot, and never holds the boot up: the source may come later."""
    return f"{_fstab(source)} {_fstab(point)} nfs4 {options},bg,nofail,_netdev 0 0 {MARK}\n"


def _fstab(word: str) -> str:
    return "".join(_octal(char) if char in " \t\n\\#" else char for char in word)


def without_ours(fstab: str) -> str:
    """The file without lines of ours; everybody else's stay as they are, byte for byte."""
    lines = re.split(
        r"(?<=\n)", fstab
    )  # only at line feeds: `splitlines` would also split inside of odd names
    return "".join(line for line in lines if not line.rstrip().endswith(MARK))


def with_ours(fstab: str, line: str) -> str:
    """The file with ``line`` as its only line of ours."""
    kept = without_ours(fstab)
    return kept + ("" if not kept or kept.endswith("\n") else "\n") + line


def parse_mounts(text: str) -> list[Mount]:
    """Lines of /proc/mounts; lines that are none are skipped."""
    found = []
    for line in text.split("\n"):
        fields = line.split(" ")
        if len(fields) >= 4:
            source, point = (_plain(field) for field in fields[:2])
            found.append(Mount(source, point, fields[2], tuple(fields[3].split(","))))
    return found


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)


def at(mounts: Sequence[Mount], point: str) -> Mount | None:
    """What is mounted at ``point``: the last one wins, as in the kernel."""
    return next((mount for mount in reversed(mounts) if mount.point == point), None)


def mount_id(mountinfo: str, point: str) -> str:
    """Id of what is mounted at ``point``, from /proc/self/mountinfo (proc(5)); empty when nothing is."""
    rows = [fields for line in mountinfo.split("\n") if len(fields := line.split(" ")) >= 5]
    return next((fields[0] for fields in reversed(rows) if _plain(fields[4]) == point), "")


def fallbacks(asked: Mapping[str, str], mount: Mount, server: str) -> list[str]:
    """What the mount became without a word, against what was asked for.

    Args:
        asked: options as name -> value, for example `{"proto": "rdma", "rsize": "1048576", "nconnect": "8"}`.
        server: the address that the client was told to use.
    """
    if mount.kind not in {"nfs", "nfs4"}:
        return [f"the mount shows as {mount.kind}: its NFS options cannot be read back"]
    found = []
    for name in ("vers", "proto"):
        value = mount.option(name)
        if name in asked and value not in {asked[name], f"{asked[name]}6"}:
            found.append(f"asked for {name}={asked[name]}, got {name}={value}")
    for name in ("rsize", "nconnect"):
        value = mount.option(name) or "1"
        if name in asked and value.isdigit() and int(value) < int(asked[name]):
            found.append(f"asked for {name}={asked[name]}, got {name}={value}")
    address = mount.option("addr")
    if address is not None and address != server:
        found.append(f"asked for the server's address {server}, got {address}")
    if mount.option("ro") is None:
        found.append("mounted writable, asked for read-only")
    return found


def parse_options(options: str) -> dict[str, str]:
    """`ro,vers=4.2` as {"ro": "", "vers": "4.2"}."""
    return {name: value for name, _, value in (word.partition("=") for word in options.split(",")) if name}
