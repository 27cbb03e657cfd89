"""The GPU as nvidia-smi shows it, and who uses it.

`[N/A]` is a normal answer on GB10 (memory, power limit, fan, memory clock): it becomes None, never a fault.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Ran, Source, TimedOutError, UnreadableError
from node_agent.facts.text import NOT_AVAILABLE, lines, number, whole

QUERY_TIMEOUT_S = 5.0  # a healthy answer takes 0.05 to 0.6 s; a wedged driver never answers
MAX_GPUS = 16
MAX_APPS = 200
FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "pci.bus_id",
    "temperature.gpu",
    "power.draw",
    "utilization.gpu",
    "clocks.sm",
    "clocks.max.sm",
    "pstate",
    "memory.total",
    "pcie.link.gen.current",
    "pcie.link.width.current",
)
QUERY = ("nvidia-smi", "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader")
REASONS = ("nvidia-smi", "--query-gpu=index,clocks_event_reasons.active", "--format=csv,noheader")
OLD_REASONS = ("nvidia-smi", "--query-gpu=index,clocks_throttle_reasons.active", "--format=csv,noheader")
APPS = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_gpu_memory", "--format=csv,noheader")
FAILURES = (
    "no devices were found",
    "failed to initialize nvml",
    "nvidia-smi has failed",
    "unable to determine",
)


def parse_failure(ran: Ran) -> str | None:
    """The sentence with which nvidia-smi says that it cannot; None when it could."""
    for item in lines(ran.out) + lines(ran.err):
        if any(item.strip().lower().startswith(start) for start in FAILURES):
            return item.strip()[:300]
    return f"nvidia-smi ended with status {ran.status}" if ran.status != 0 else None


def parse_devices(text: str) -> list[dict[str, Any]]:
    """Rows of `QUERY`. A row with another number of columns is left out."""
    found = []
    for item in lines(text):
        cells = [cell.strip() for cell in item.split(",")]
        if len(cells) != len(FIELDS) or whole(cells[0]) is None:
            continue
        row = dict(zip(FIELDS, cells, strict=True))
        known = {key: None if value.lower() in NOT_AVAILABLE else value[:100] for key, value in row.items()}
        found.append(
            {
                "index": whole(cells[0]),
                "name": known["name"],
                "uuid": known["uuid"],
                "driver": known["driver_version"],
                "pci": known["pci.bus_id"],
                "temperature_c": number(row["temperature.gpu"]),
                "power_w": number(row["power.draw"]),
                "utilization_percent": number(row["utilization.gpu"]),
                "sm_mhz": number(row["clocks.sm"]),
                "sm_max_mhz": number(row["clocks.max.sm"]),
                "pstate": known["pstate"],
                "memory_mib": number(row["memory.total"]),
                "pcie_generation": number(row["pcie.link.gen.current"]),
                "pcie_width": number(row["pcie.link.width.current"]),
            }
        )
    return found[:MAX_GPUS]


def parse_reasons(text: str) -> dict[int, int]:
    """GPU index → bits of the clock event reasons."""
    found = {}
    for item in lines(text):
        index, comma, bits = item.partition(",")
        value = whole(bits, 0)
        if comma and whole(index) is not None and value is not None:
            found[int(index)] = value
    return found


def parse_apps(text: str) -> list[dict[str, Any]]:
    """Rows of `APPS`; the name may contain commas."""
    found = []
    for item in lines(text):
        pid, _, rest = item.partition(",")
        name, _, used = rest.rpartition(",")
        if whole(pid) is None:
            continue
        mib = number(used)
        found.append(
            {
                "pid": whole(pid),
                "name": name.strip()[:300],
                "bytes": None if mib is None else int(mib * 1024 * 1024),
            }
        )
    return found[:MAX_APPS]


def container_of(cgroup: str) -> str | None:
    """The container id in a text of /proc/PID/cgroup; None outside a container."""
    found = re.search(r"(?:docker[-/]|cri-containerd-|libpod-)([0-9a-f]{12,64})", cgroup)
    return found.group(1)[:12] if found else None


def owner_of(source: Source, pid: int) -> dict[str, Any]:
    """User and container of a process, as far as an ordinary user may know."""
    status = source.text(f"/proc/{pid}/status") or ""
    uid = re.search(r"^Uid:\s+(\d{1,10})", status, re.MULTILINE)
    user = None
    for item in lines(source.text("/etc/passwd") or ""):
        parts = item.split(":")
        if uid and len(parts) > 2 and parts[2] == uid.group(1):
            user = parts[0][:64]
    return {"user": user, "container": container_of(source.text(f"/proc/{pid}/cgroup") or "")}


def asked(source: Source, query: tuple[str, ...]) -> Ran | None:
    """One of the further queries; None when it fails or hangs: the first one has said so already."""
    try:
        ran = source.run(*query, timeout_s=QUERY_TIMEOUT_S)
    except TimedOutError:
        return None
    return ran if ran and ran.status == 0 else None


def read(source: Source) -> dict[str, Any] | None:
    """None where nvidia-smi is not installed. A hang of nvidia-smi is a time-out of this fact only.

    The queries run side by side: each start of nvidia-smi costs a third of a second.
    """
    with ThreadPoolExecutor(max_workers=3) as pool:
        further = [pool.submit(asked, source, query) for query in (REASONS, APPS)]
        ran = source.run(*QUERY, timeout_s=QUERY_TIMEOUT_S)
        told, listed = (future.result() for future in further)
    if ran is None:
        return None
    failure = parse_failure(ran)
    devices = [] if failure else parse_devices(ran.out)
    if not failure and not devices:
        raise UnreadableError("nvidia-smi: no row of its answer could be understood")
    told = told or (asked(source, OLD_REASONS) if devices else None)
    reasons = parse_reasons(told.out) if told else {}
    apps = parse_apps(listed.out) if listed and devices else []
    return {
        "failure": failure,
        "devices": [{**device, "reasons": reasons.get(device["index"])} for device in devices],
        "apps": [{**app, **owner_of(source, app["pid"])} for app in apps],
    }


READER = Reader("gpu", read, timeout_s=4 * QUERY_TIMEOUT_S)
