"""A node that reads the checkpoint over NFS: mount, read back what the mount became, take it away."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from node_agent import checkpoint, privileged, rights
from node_agent.bounded import HungError, bounded
from node_agent.home import Home
from node_agent.nfs import text
from node_agent.wire import Refused

MOUNT_TIMEOUT_S = 90.0
ALIVE_TIMEOUT_S = 10.0
"""A healthy mount answers in under 10 ms, a busy server in seconds; with a `hard` mount a lost one never does."""
PROBE_BYTES = 1 << 20
"""Of the index: more than one jumbo frame, little for any link."""
UNMOUNT_TIMEOUT_S = 10.0
FSTAB = Path("/etc/fstab")


def mount_point(home: Home) -> Path:
    """Where the share is mounted: for an ordinary account the place that `enroll` made, owned by root."""
    return home.share / "nfs" if privileged.is_root() else privileged.MOUNT_POINT


def current(home: Home) -> text.Mount | None:
    """The mount that is there now."""
    mounts = text.parse_mounts(Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"))
    return text.at(mounts, str(mount_point(home)))


def problem(home: Home) -> str:
    """Why the mount cannot be read; empty when it can. Never hangs, whatever the server does."""
    if current(home) is None:
        return "not mounted"

    def look() -> None:
        os.listdir(mount_point(home))
        # A folder's names fit into a small packet: large ones may get lost all the same.
        with suppress(FileNotFoundError), (home.checkpoint / checkpoint.INDEX).open("rb") as file:
            file.read(PROBE_BYTES)

    try:
        bounded(("share", mount_id(home)), look, ALIVE_TIMEOUT_S)
    except HungError:
        return f"the server does not answer within {ALIVE_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"{error.strerror}"
    return ""


def mount_id(home: Home) -> str:
    """Which mount it is: what hangs in one that was replaced says nothing of the one that is there."""
    rows = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    return text.mount_id(rows, str(mount_point(home)))


def attach(home: Home, server: str, root: str, options: str, *, again: bool = False) -> list[str]:
    """Mount ``server:root`` read-only; what it became against what was asked for.

    A mount that is there already and healthy, from the same source, stays unless it shall be mounted ``again``; a
    stale or a different one is replaced. Where `proto=rdma` is refused, TCP is tried, and named.
    """
    point, source = mount_point(home), f"{server}:{root}"
    asked = text.parse_options(options)
    there = current(home)
    if there is not None:
        why = problem(home)
        if again or why or there.source != source or text.fallbacks(asked, there, server):
            _unmount(point, gone=bool(why))
            there = None
    notes = []
    if not privileged.is_root():
        rights.enrolled_mount(rights.fstab_line(server, root, options))
    if there is None:
        try:
            _mount(source, point, options)
        except Refused as refusal:
            # an enrolled account mounts what the fstab says, and nothing else
            if asked.get("proto") != "rdma" or not privileged.is_root():
                raise
            options = ",".join(
                word for word in options.split(",") if not word.startswith(("proto=", "port="))
            )
            _mount(source, point, options)
            notes.append(f"proto=rdma was refused ({refusal}): mounted over TCP")
    mounted = current(home)
    if mounted is None or (why := problem(home)):
        raise Refused(f"mounted {source}, but it cannot be read: {why if mounted else 'no mount is there'}")
    if privileged.is_root():
        line = text.fstab_line(source, str(point), options)
        _fstab(lambda old: text.with_ours(old, line))
    return [*notes, *text.fallbacks(asked, mounted, server)]


def detach(home: Home) -> None:
    """Unmount and forget, now and after a reboot. Fine when nothing is mounted."""
    if current(home) is not None:
        _unmount(mount_point(home), gone=bool(problem(home)))
    if not privileged.is_root():
        return  # place and line belong to the enrolment
    _fstab(text.without_ours)
    point = mount_point(home)
    if point.is_dir():
        point.rmdir()


def facts(home: Home, asked: dict[str, Any]) -> dict[str, Any]:
    """What a look says about the mount."""
    mounted, why = current(home), problem(home)
    options = text.parse_options(str(asked.get("options", "")))
    return {
        "problem": why,
        "options": ",".join(mounted.options) if mounted else "",
        "fallbacks": text.fallbacks(options, mounted, str(asked.get("server", ""))) if mounted else [],
    }


def _mount(source: str, point: Path, options: str) -> None:
    """As root with these options; an enrolled account by the line of the fstab, which says the same."""
    if privileged.is_root():
        point.mkdir(parents=True, exist_ok=True)
        privileged.run("mount", "-t", "nfs4", "-o", options, source, str(point), timeout_s=MOUNT_TIMEOUT_S)
    else:
        privileged.run(*rights.mount(str(point)), timeout_s=MOUNT_TIMEOUT_S)


def _unmount(point: Path, *, gone: bool) -> None:
    """Take the name away. Of a server that is ``gone`` lazily at once: umount would ask it, and may never come back."""
    try:
        privileged.run(*rights.unmount(str(point), lazy=gone), timeout_s=UNMOUNT_TIMEOUT_S)
    except privileged.NotAllowedError:
        raise
    except Refused:
        if gone:
            raise
        privileged.run(*rights.unmount(str(point), lazy=True), timeout_s=UNMOUNT_TIMEOUT_S)


def _fstab(change: Callable[[str], str]) -> None:
    try:
        old = FSTAB.read_text(encoding="utf-8")
    except FileNotFoundError:
        old = ""
    new = change(old)
    if new != old:
        privileged.replace_file(FSTAB, new)
