"""Kernel, driver settings, and how the last boot ended."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.checks.check import FORUM, Check, E, Hit, Node, W, Yard, value
from orchestrator.checks.networks import registration
from orchestrator.model.finding import Confidence

PANICS = "6.17.0-1008"
HANDOVER = "7.0.0-1019"  # kexec handover reserves memory: CmaTotal 0 kB, registration fails, 7.2 GiB less
HANDOVER_OFF = "kho=off"


def known_bad(node: Node, yard: Yard) -> Iterable[Hit]:
    kernel = value(node.facts.kernel)
    if kernel is None:
        return
    if kernel.release.startswith(PANICS):
        doe = [line for line in node.log("mlx5") if "DOE" in line]
        yield Hit(kernel.release, evidence=doe[-1] if doe else "")
    reserves = kernel.release.startswith(HANDOVER) and HANDOVER_OFF not in kernel.command_line.split()
    if reserves and len(yard.nodes) > 1:
        yield Hit(f"{kernel.release} without {HANDOVER_OFF}")


def initrd(node: Node) -> Iterable[Hit]:
    kernel = value(node.facts.kernel)
    if kernel is None:
        return
    wanted = {kernel.newest, kernel.release}
    for release in kernel.missing_initrds:
        if release in wanted:
            which = "newest kernel" if release == kernel.newest else "running kernel"
            yield Hit(f"no /boot/initrd.img-{release} ({which})")


def crash(node: Node) -> Iterable[Hit]:
    lines = node.log("crash")
    if lines:
        yield Hit(f"{len(lines)} lines of kernel crashes since boot", evidence=lines[0])


def contiguous(node: Node) -> Iterable[Hit]:
    memory = value(node.facts.memory)
    if memory is not None and node.is_gb10_memory and memory.cma_total_bytes == 0:
        yield Hit("CmaTotal 0 kB")


def modeset(node: Node) -> Iterable[Hit]:
    kernel = value(node.facts.kernel)
    if kernel is None:
        return
    overrides = [line for line in kernel.modeset_overrides if "modeset=0" in line.replace(" ", "")]
    if kernel.drm_modeset == "N" or overrides:
        fatal = any(True for _ in registration(node))
        shown = f"nvidia_drm modeset is {kernel.drm_modeset or 'not loaded'}"
        yield Hit(shown, evidence=overrides[0] if overrides else "", severity=E if fatal else None)


def clean_boot(node: Node) -> Iterable[Hit]:
    ending = value(node.facts.previous_boot)
    if ending is not None and not ending.clean:
        last = ending.tail[-1] if ending.tail else ""
        yield Hit("the boot before this one ended without a shutdown", evidence=last)


def rejected(node: Node) -> Iterable[Hit]:
    lines = [line for line in node.log("modules") if re.search("Key was rejected", line)]
    if lines:
        yield Hit("the kernel refused a module's signature", evidence=lines[-1])


def kernel_equal(yard: Yard) -> Iterable[Hit]:
    releases = {node.name: kernel.release for node in yard.seen if (kernel := value(node.facts.kernel))}
    if len(set(releases.values())) > 1:
        yield Hit(", ".join(f"{name} {release}" for name, release in releases.items()))


CHECKS = (
    Check(
        "kernel.bad",
        ("kernel",),
        "6.17.0-1014 or newer of the 6.17 line",
        f"{PANICS} panics; {HANDOVER} breaks multi-node NCCL unless booted with {HANDOVER_OFF}",
        E,
        f"boot 6.17.0-1032 and hold it, or add {HANDOVER_OFF} to the kernel command line",
        f"{FORUM}383254 {FORUM}366026 {FORUM}383222",
        within=known_bad,
    ),
    Check(
        "kernel.initrd",
        ("kernel",),
        "an initrd for the running and for the newest kernel",
        "missing: the next boot fails",
        E,
        "update-initramfs -c -k RELEASE",
        f"{FORUM}383450",
        each=initrd,
    ),
    Check(
        "kernel.equal",
        ("kernel",),
        "the same kernel on all nodes",
        "different ones",
        W,
        "bring all nodes to one release",
        f"{FORUM}383254",
        whole=kernel_equal,
        needs_peers=True,
    ),
    Check(
        "kernel.taint",
        ("kernel_log",),
        "no BUG, Oops or lock-up since boot",
        "one of them",
        E,
        "look the first line of the trace up; reboot before the next run",
        f"{FORUM}367605 https://github.com/Mellanox/mstflint/issues/1786",
        each=crash,
    ),
    Check(
        "kernel.cma",
        ("memory",),
        "a pool of contiguous memory (CmaTotal)",
        "0 kB: RDMA registration fails with ENOMEM",
        W,
        f"boot with {HANDOVER_OFF}, or another kernel",
        "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259",
        each=contiguous,
    ),
    Check(
        "kernel.modkey",
        ("kernel_log",),
        "no module refused",
        "`Key was rejected by service`: Secure Boot does not know the key of a module that was built here",
        E,
        "enrol the key (mokutil) or use the signed modules of the distribution",
        f"{FORUM}383450",
        each=rejected,
    ),
    Check(
        "boot.clean",
        ("previous_boot",),
        "the last boot ended with a shutdown",
        "it ended abruptly: power, heat, or a wedged host",
        W,
        "compare the time with the load; `nvidia-smi -lgc 0,2100` helped several people; original power supply "
        "straight into the wall; return the unit if it repeats",
        f"{FORUM}378315 {FORUM}360336 https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358",
        each=clean_boot,
        confidence=Confidence.MEDIUM,
    ),
    Check(
        "drm.modeset",
        ("kernel",),
        "nvidia_drm modeset=Y",
        "N, or an override modeset=0: breaks display, DMA-BUF and with it RDMA registration",
        W,
        "remove the override from /etc/modprobe.d, update-initramfs -u, reboot",
        f"{FORUM}382452",
        each=modeset,
    ),
)
