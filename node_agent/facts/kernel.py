"""The kernel, its command line, the modules and settings that matter here, and whether it can boot again."""

from __future__ import annotations

import re
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import DeniedError, Source
from node_agent.facts.text import line, lines, whole

MODULES = (
    "nvidia",
    "nvidia_drm",
    "nvidia_peermem",
    "mlx5_core",
    "r8127",
    "r8169",
    "mt7925e",
    "spbm",
    "nfs",
    "nfsd",
)
SYSCTLS = (
    "vm.swappiness",
    "vm.min_free_kbytes",
    "vm.overcommit_memory",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.rp_filter",
    "kernel.dmesg_restrict",
)
MAX_MODPROBE_LINES = 50
START_UP = ("/etc/systemd/system", "/etc/cron.d")  # where people put `nvidia-smi -lgc`
CLOCK_CAP = re.compile(r"nvidia-smi\b.*\s(?:-lgc|--lock-gpu-clocks)[ =](?:\d{1,5},)?(\d{1,5})\b")


def parse_modules(text: str) -> list[str]:
    """The modules of `MODULES` that /proc/modules names."""
    loaded = {item.partition(" ")[0] for item in lines(text)}
    return [name for name in MODULES if name in loaded]


def missing_initrds(boot_names: list[str]) -> list[str]:
    """Kernel releases in /boot that have a kernel and no initrd."""
    kernels = {name[8:] for name in boot_names if name.startswith("vmlinuz-")}
    initrds = {name[11:] for name in boot_names if name.startswith("initrd.img-")}
    return sorted(kernels - initrds)


def newest(releases: list[str]) -> str | None:
    """The newest of several kernel releases, by their numbers."""
    return max(releases, key=lambda text: [int(part) for part in re.findall(r"\d{1,9}", text)], default=None)


def modeset_overrides(source: Source) -> list[str]:
    """Lines of /etc/modprobe.d that set nvidia_drm's modeset, each with its file."""
    found = []
    for name in source.names("/etc/modprobe.d"):
        try:
            text = source.text(f"/etc/modprobe.d/{name}") or ""
        except DeniedError:
            continue
        found += [
            f"/etc/modprobe.d/{name}: {item.strip()[:200]}"
            for item in lines(text)
            if "modeset" in item and "nvidia" in item and not item.lstrip().startswith("#")
        ]
    return found[:MAX_MODPROBE_LINES]


def parse_clock_cap(text: str) -> int | None:
    """The highest clock in MHz that a start-up file allows with `nvidia-smi -lgc LOW,HIGH`; None without one."""
    for item in lines(text):
        found = CLOCK_CAP.search(item)
        if found and not item.lstrip().startswith("#"):
            return int(found.group(1))
    return None


def clock_cap(source: Source) -> int | None:
    """The clock cap that is set at each start, from the units and cron files of the machine."""
    for folder in START_UP:
        for name in source.names(folder):
            try:
                found = parse_clock_cap(source.text(f"{folder}/{name}") or "")
            except DeniedError:
                continue
            if found is not None:
                return found
    return None


def read(source: Source) -> dict[str, Any]:
    """Kernel facts; nothing here needs root."""
    boot = source.names("/boot")
    kernels = [name[8:] for name in boot if name.startswith("vmlinuz-")]
    settings = {name: whole(source.text("/proc/sys/" + name.replace(".", "/"))) for name in SYSCTLS}
    return {
        "release": line(source.text("/proc/sys/kernel/osrelease")) or "",
        "command_line": line(source.text("/proc/cmdline")) or "",
        "tainted": whole(source.text("/proc/sys/kernel/tainted")),
        "modules": parse_modules(source.text("/proc/modules") or ""),
        "drm_modeset": line(source.text("/sys/module/nvidia_drm/parameters/modeset")),
        "modeset_overrides": modeset_overrides(source),
        "newest": newest(kernels),
        "missing_initrds": missing_initrds(boot),
        "clock_cap_mhz": clock_cap(source),
        "sysctls": {name: value for name, value in settings.items() if value is not None},
    }


READER = Reader("kernel", read)
