"""The node that has the checkpoint: export it, take the export back, say what is exported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from node_agent import checkpoint, privileged, rights
from node_agent.nfs import text
from node_agent.wire import Refused

TOOL_TIMEOUT_S = 30.0
ETAB = Path("/var/lib/nfs/etab")
NFS_PORT = 2049
LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
LINKS_MAX = 10_000


def export(path: str, clients: list[str]) -> dict[str, Any]:
    """Export the checkpoint read-only to ``clients`` only. Refused when the folder cannot be shared."""
    root, inside = text.split(path)
    _exportable(root)
    _links_stay_inside(Path(path), Path(root))
    options = _options(path)
    wanted = text.exports_text(root, clients, options)
    if privileged.is_root():
        privileged.replace_file(Path(text.EXPORTS_FILE), wanted)
    else:
        rights.enrolled_exports(wanted)
        privileged.run(*rights.KEEP_EXPORTS, timeout_s=TOOL_TIMEOUT_S)
    for client in sorted(exported(root) - set(clients)):
        privileged.run(*rights.unexport(root, client), timeout_s=TOOL_TIMEOUT_S)
    for client in clients:
        privileged.run(*rights.export(root, client, options), timeout_s=TOOL_TIMEOUT_S)
    if not _served():
        raise Refused(
            f"the checkpoint is exported, but no NFS server listens on port {NFS_PORT}: "
            "sudo systemctl enable --now nfs-kernel-server"
        )
    return {"root": root, "inside": inside, "options": options}


def unexport(path: str) -> None:
    """Take it back, now and after a reboot. Fine when it is not exported.

    The file first: while it is exported somebody comes back to finish; a file that nobody looks for would bring the
    export back at the next boot.
    """
    root, _ = text.split(path)
    if Path(text.EXPORTS_FILE).exists():
        privileged.run(*rights.DROP_EXPORTS, timeout_s=TOOL_TIMEOUT_S)
    for client in sorted(exported(root)):
        privileged.run(*rights.unexport(root, client), timeout_s=TOOL_TIMEOUT_S)


def _options(path: str) -> str:
    """Clients act as the owner of the files; of an ordinary account's agent as that account, never as more than it."""
    if not privileged.is_root():
        return text.export_options(os.geteuid(), os.getegid())
    owner = (Path(path) / checkpoint.INDEX).stat()
    return text.export_options(owner.st_uid, owner.st_gid)


def exported(root: str) -> set[str]:
    """Clients that ``root`` is exported to, from the NFS server's own table."""
    found: set[str] = set()
    try:
        lines = ETAB.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        place, _, rest = line.partition("\t")
        if place == root and "(" in rest:
            found.add(rest.partition("(")[0])
    return found


def facts(path: str) -> list[str]:
    """Clients that the checkpoint at ``path`` is exported to, as long as an NFS server runs; sorted."""
    return sorted(exported(text.split(path)[0])) if _served() else []


def _served() -> bool:
    """Whether an NFS server listens here, whichever it is."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == NFS_PORT:
                return True
    return False


def _exportable(root: str) -> None:
    mounts = text.parse_mounts(Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"))
    real = os.path.realpath(root)
    best = max(
        (mount for mount in mounts if (real + "/").startswith(mount.point.rstrip("/") + "/")),
        key=lambda mount: len(mount.point),
    )
    if best.kind in text.NOT_EXPORTABLE:
        raise Refused(f"{root} lies on {best.kind} ({best.point}): {text.NOT_EXPORTABLE[best.kind]}")


def _links_stay_inside(path: Path, root: Path) -> None:
    """A link that leaves the export leads nowhere on a client: named here, not found there."""
    top = os.path.realpath(root)
    for number, entry in enumerate(os.scandir(path)):
        if number > LINKS_MAX:
            raise Refused(f"{path} holds over {LINKS_MAX:,} entries: that is no checkpoint's folder")
        if entry.is_symlink():
            target = os.path.realpath(entry.path)
            if not (target + "/").startswith(top + "/"):
                raise Refused(
                    f"{entry.path} is a link to {target}, outside of what can be exported ({top}): "
                    "the other nodes would find nothing there; copy the file, or share the folder that holds both"
                )
            if not Path(target).exists():
                raise Refused(f"{entry.path} is a link to {target}, which does not exist: fetch it again")
