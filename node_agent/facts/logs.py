"""What the kernel and two services said, reduced to lines that a check reads; and how the last boot ended."""

from __future__ import annotations

import re
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import DeniedError, Ran, Source, UnreadableError
from node_agent.facts.text import lines

KERNEL = ("journalctl", "-k", "-b", "-o", "short-iso", "--no-pager", "-n", "20000")
DMESG = ("dmesg", "--time-format", "iso")
PREVIOUS = ("journalctl", "-b", "-1", "-n", "80", "-o", "short-iso", "--no-pager")
SERVICES = (
    "journalctl",
    "-b",
    "-u",
    "NetworkManager",
    "-u",
    "avahi-daemon",
    "-n",
    "2000",
    "-o",
    "cat",
    "--no-pager",
)
COMMAND_TIMEOUT_S = 6.0
MAX_LINES = 300  # of one kind; the newest are kept
MAX_LINE = 400
NEED = "group systemd-journal or adm, or root"
KINDS = {
    "aer": re.compile(r"AER:|PCIe Bus Error", re.IGNORECASE),
    "mlx5": re.compile(r"\bmlx5|cx7-pcie-hotplug|DOE mailbox", re.IGNORECASE),
    "nvidia": re.compile(r"NVRM|nvidia-modeset|GSP", re.IGNORECASE),
    "memory": re.compile(r"Out of memory: Kill|oom-kill|oom_reaper|page allocation failure", re.IGNORECASE),
    "crash": re.compile(
        r"kernel BUG|BUG:|Oops|soft lockup|hard LOCKUP|self-detected stall|hung_task|blocked for more than",
        re.IGNORECASE,
    ),
    "disk": re.compile(
        r"EXT4-fs error|EXT4-fs warning|I/O error|nvme\d.*(?:timeout|reset)|Remounting filesystem read-only",
        re.IGNORECASE,
    ),
    "wifi": re.compile(r"mt7925", re.IGNORECASE),
    "rdma": re.compile(r"ibv_reg_mr|reg_mr.*(?:ENOMEM|Cannot allocate)", re.IGNORECASE),
    "modules": re.compile(r"Key was rejected by service", re.IGNORECASE),
    "thermal": re.compile(r"critical temperature|thermal.*(?:shutdown|throttl)", re.IGNORECASE),
}
CLEAN_END = re.compile(
    r"Reached target .*(?:Power-Off|Reboot|Shutdown|Halt|reboot\.target|poweroff\.target)|systemd-shutdown|"
    r"reboot: |Shutting down\.|Journal stopped|Rebooting\.|Powering off",
    re.IGNORECASE,
)
NO_RIGHT = re.compile(
    r"not seeing messages from other users|permission denied|not permitted|insufficient permissions",
    re.IGNORECASE,
)


def parse_kernel(text: str) -> dict[str, list[str]]:
    """Kind of `KINDS` → its lines, the newest `MAX_LINES` of each, in order."""
    found: dict[str, list[str]] = {}
    for item in lines(text):
        for kind, pattern in KINDS.items():
            if pattern.search(item[: 4 * MAX_LINE]):
                found.setdefault(kind, []).append(item.strip()[:MAX_LINE])
    return {kind: kept[-MAX_LINES:] for kind, kept in found.items()}


def parse_ending(text: str) -> dict[str, Any] | None:
    """How a boot ended, by the last lines of its journal; None when there are none."""
    kept = [item.strip()[:MAX_LINE] for item in lines(text) if item.strip() and not item.startswith("-- ")]
    if not kept:
        return None
    return {"clean": any(CLEAN_END.search(item) for item in kept), "tail": kept[-8:]}


def parse_services(text: str) -> dict[str, Any]:
    """Name that avahi ended up with, and how often NetworkManager gave up on DHCP."""
    name = None
    failures: list[str] = []
    for item in lines(text):
        match = re.search(r"[Hh]ost name is ([\w-]{1,63})\.local", item) or re.search(
            r"retrying with ([\w-]{1,63})", item
        )
        if match:
            name = match.group(1)
        if "ip-config-unavailable" in item:
            failures.append(item.strip()[:MAX_LINE])
    return {"avahi_name": name, "dhcp_failures": failures[-MAX_LINES:]}


def _checked(ran: Ran | None, what: str) -> Ran | None:
    """`ran` when it holds what was asked for; DeniedError when the journal hides other users' lines."""
    if ran is not None and NO_RIGHT.search(ran.err + ran.out[:2000]):
        raise DeniedError(what)
    return ran


def read_kernel(source: Source) -> dict[str, list[str]]:
    """The journal, or dmesg where there is no journal."""
    ran = _checked(source.run(*KERNEL, timeout_s=COMMAND_TIMEOUT_S), "journalctl -k")
    if ran is None or ran.status != 0 or "No journal files" in ran.err or not ran.out.strip():
        ran = _checked(source.run(*DMESG, timeout_s=COMMAND_TIMEOUT_S), "dmesg")
    if ran is None or ran.status != 0:
        raise UnreadableError("neither journalctl nor dmesg can show the kernel's messages")
    return parse_kernel(ran.out)


def read_previous(source: Source) -> dict[str, Any] | None:
    """None when the journal knows no earlier boot."""
    ran = _checked(source.run(*PREVIOUS, timeout_s=COMMAND_TIMEOUT_S), "journalctl -b -1")
    return None if ran is None or ran.status != 0 else parse_ending(ran.out)


def read_services(source: Source) -> dict[str, Any] | None:
    """None where there is no journal."""
    ran = _checked(source.run(*SERVICES, timeout_s=COMMAND_TIMEOUT_S), "journalctl -u NetworkManager")
    return None if ran is None or ran.status != 0 else parse_services(ran.out)


KERNEL_LOG = Reader("kernel_log", read_kernel, need=NEED, timeout_s=2 * COMMAND_TIMEOUT_S)
PREVIOUS_BOOT = Reader("previous_boot", read_previous, need=NEED)
SERVICES_LOG = Reader("services", read_services, need=NEED)
