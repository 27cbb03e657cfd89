"""Small repairs of a node, each with its undo. A closed list: nothing else can be asked for.

What touches the network reverts itself unless it is confirmed in time, so a node that a repair cuts off comes back.
Never the interface of the SSH connection or of a default route, never a file that somebody else wrote.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_agent import privileged, rights
from node_agent.facts.source import DeniedError, Live, TimedOutError
from node_agent.rights import CDI_SPEC
from node_agent.wire import Refused

COMMAND_TIMEOUT_S = 20.0
REVERT_S = 30.0
MAX_REVERT_S = 600.0
SYNC = ("sync",)
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
SETTINGS = (*rights.SETTINGS, "vm.swappiness")
WATCH = 'sleep "$1"; mark="$2"; shift 2; [ -e "$mark" ] || "$@"; rm -f "$mark"'


@dataclass(frozen=True)
class Repair:
    """What is run, what takes it back, and whether it reverts itself unless confirmed."""

    do: tuple[tuple[str, ...], ...]
    undo: tuple[str, ...]
    reverts: bool
    before: str


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None


def protected_devices() -> set[str]:
    """Interfaces of a default route, and the one that carries the SSH connection of this agent."""
    live = Live()
    found = set()
    for family in ("-4", "-6"):
        routes = live.run("ip", "-j", family, "route", "show", "default", timeout_s=COMMAND_TIMEOUT_S)
        if routes is not None and routes.out.strip():
            found |= {str(row.get("dev")) for row in json.loads(routes.out)}
    ends = os.environ.get("SSH_CONNECTION", "").split()
    if len(ends) == 4:
        shown = live.run("ip", "-j", "address", "show", timeout_s=COMMAND_TIMEOUT_S)
        for row in json.loads(shown.out) if shown and shown.out.strip() else []:
            if any(item.get("local") == ends[2] for item in row.get("addr_info", [])):
                found.add(str(row.get("ifname")))
    return found


def plan(kind: str, args: dict[str, Any]) -> Repair:
    """What a repair would do here. Refused when it must not or need not be done."""
    if kind == "mtu":
        device, mtu = str(args["device"]), int(args["mtu"])
        if not NAME.fullmatch(device) or not 1280 <= mtu <= 9978:
            raise Refused(f"mtu: {device[:80]!r} {mtu} is no device and size")
        if device in protected_devices():
            raise Refused(f"{device} carries the SSH connection or a default route: it is never touched")
        before = _read(f"/sys/class/net/{device}/mtu")
        do, undo = rights.mtu(device, mtu), rights.mtu(device, int(before))
        return Repair((do,), undo, reverts=True, before=before)
    if kind == "sysctl":
        name, value = str(args["name"]), int(args["value"])
        if name not in SETTINGS:
            raise Refused(f"sysctl: {name[:80]!r} is not in the list {', '.join(SETTINGS)}")
        before = _read("/proc/sys/" + name.replace(".", "/"))
        do, undo = rights.setting(name, value), rights.setting(name, before)
        return Repair((do,), undo, reverts=name.startswith("net."), before=before)
    if kind == "drop_caches":
        return Repair((SYNC, rights.DROP_CACHES), (), reverts=False, before="")
    if kind == "docker_group":
        user = str(args["user"])
        if not NAME.fullmatch(user):
            raise Refused(f"docker_group: {user[:80]!r} is no user name")
        return Repair(
            (("usermod", "-aG", "docker", user),), ("gpasswd", "-d", user, "docker"), False, "not a member"
        )
    if kind == "cdi":
        if Path(CDI_SPEC).exists():
            raise Refused(f"{CDI_SPEC} exists already: it is left alone")
        return Repair((rights.CDI,), ("rm", CDI_SPEC), reverts=False, before="absent")
    if kind == "ntp":
        return Repair((rights.NTP,), ("timedatectl", "set-ntp", "false"), reverts=False, before="off")
    raise Refused(f"no such repair: {kind[:80]!r}")


def _run(argv: tuple[str, ...], *, sudo: bool) -> None:
    try:
        ran = Live(sudo=sudo).run(*argv, timeout_s=COMMAND_TIMEOUT_S, privileged=argv != SYNC)
    except DeniedError as denied:
        if sudo:
            raise Refused(
                f"{denied}: ./start.sh enroll lists what it may do; else run it yourself as root"
            ) from None
        raise Refused(f"needs root; run it yourself: {' '.join(argv)}") from None
    except TimedOutError as error:
        raise Refused(str(error)) from None
    if ran is None:
        raise Refused(f"{argv[0]} is not installed")
    if ran.status != 0:
        text = (ran.err or ran.out).strip()[-300:]
        raise Refused(f"{' '.join(argv)}: {text}")


def apply(folder: Path, args: dict[str, Any]) -> dict[str, Any]:
    """Do one repair. With `show`, only say what it would do.

    Args: {"kind", "args", "show", "sudo", "revert_s"}. Returns {"commands", "undo", "before", "token", "revert_s"}:
    `token` is to be confirmed within `revert_s` seconds, otherwise the undo runs by itself; None where nothing reverts.
    """
    repair = plan(str(args["kind"]), dict(args.get("args") or {}))
    shown = {
        "commands": [" ".join(argv) for argv in repair.do],
        "undo": " ".join(repair.undo),
        "before": repair.before,
        "token": None,
        "revert_s": 0.0,
    }
    if args.get("show"):
        return shown
    sudo = bool(args.get("sudo")) or privileged.agreed()
    if repair.reverts and sudo and not privileged.allowed(repair.undo):
        # what could not be taken back is not done
        raise Refused(
            f"its undo is not among this account's sudo rights: {' '.join(privileged.absolute(repair.undo))}"
        )
    watch: subprocess.Popen[bytes] | None = None
    if repair.reverts:
        revert_s = min(float(args.get("revert_s") or REVERT_S), MAX_REVERT_S)
        token = secrets.token_hex(8)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        undo = privileged.command(repair.undo) if sudo else list(repair.undo)
        # A session of its own: it must outlive the agent, whose channel the repair may cut.
        watch = subprocess.Popen(
            ["sh", "-c", WATCH, "sh", str(revert_s), str(folder / token), *undo],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        shown |= {"token": token, "revert_s": revert_s}
    try:
        for argv in repair.do:
            _run(argv, sudo=sudo)
    except Refused:
        if watch is not None:
            watch.kill()
            watch.wait()
        raise
    return shown


def confirm(folder: Path, args: dict[str, Any]) -> dict[str, Any]:
    """Keep what was done: the node could be reached again. Refused for a token that is none."""
    token = str(args["token"])
    if not re.fullmatch(r"[0-9a-f]{16}", token):
        raise Refused("no such repair to confirm")
    (folder / token).touch(mode=0o600)
    return {"kept": True}
