"""Memory: one pool for CPU and GPU, so the host's memory is the GPU's memory."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.checks.check import Check, E, Hit, N, Node, W, gib, value
from orchestrator.model.hardware import GIB

TOTAL_GOOD, TOTAL_FLOOR = 119 * GIB, 110 * GIB  # 119.7 and 121.7 GiB are normal; kexec handover leaves 114
AVAILABLE_LOW, AVAILABLE_FLOOR = 10 * GIB, 5 * GIB  # a collapse takes 29 → 2.5 GiB in 9 s
CACHE_MUCH = 60 * GIB
SWAP_MUCH = 8 * GIB
PRESSURE_HIGH = 0.25  # percent of ten seconds in which everything waited; spark-doctor's bound
FRAGMENTED_FREE = 8 * GIB  # with less free memory there are no large blocks for a simpler reason
LARGE_ORDER = 10  # blocks of 4 MiB; four tired nodes had none, a fresh one 24
UNIFIED = "https://github.com/vllm-project/vllm/issues/54200"


def total(node: Node) -> Iterable[Hit]:
    memory = value(node.facts.memory)
    if memory is not None and node.is_gb10_memory and memory.total_bytes < TOTAL_GOOD:
        yield Hit(gib(memory.total_bytes), severity=E if memory.total_bytes < TOTAL_FLOOR else None)


def available(node: Node) -> Iterable[Hit]:
    memory = value(node.facts.memory)
    if memory is not None and node.is_gb10_memory and memory.available_bytes < AVAILABLE_LOW:
        short = memory.available_bytes < AVAILABLE_FLOOR
        yield Hit(f"{gib(memory.available_bytes)} available", severity=E if short else None)


def cache(node: Node) -> Iterable[Hit]:
    memory = value(node.facts.memory)
    if memory is not None and memory.cached_bytes - memory.shared_bytes >= CACHE_MUCH:
        yield Hit(f"{gib(memory.cached_bytes)} of page cache, {gib(memory.free_bytes)} free")


def swap(node: Node) -> Iterable[Hit]:
    memory = value(node.facts.memory)
    if memory is not None and memory.swap_total_bytes - memory.swap_free_bytes > SWAP_MUCH:
        yield Hit(f"{gib(memory.swap_total_bytes - memory.swap_free_bytes)} swapped out")


def pressure(node: Node) -> Iterable[Hit]:
    memory = value(node.facts.memory)
    full = memory.pressure_full_avg10 if memory else None
    if full is not None and node.is_gb10_memory and full > PRESSURE_HIGH:
        yield Hit(f"full avg10 {full:g} %")


def fragmented(node: Node) -> Iterable[Hit]:
    memory = value(node.facts.memory)
    if memory is None or memory.buddy_blocks is None or memory.free_bytes < FRAGMENTED_FREE:
        return
    if node.is_gb10_memory and sum(memory.buddy_blocks[LARGE_ORDER:]) == 0:
        days = f", up {memory.uptime_s / 86400:.0f} days" if memory.uptime_s else ""
        yield Hit(f"no free block of 4 MiB with {gib(memory.free_bytes)} free{days}")


def no_memory_lines(node: Node) -> Iterable[Hit]:
    lines = [line for line in node.log("nvidia") if "NV_ERR_NO_MEMORY" in line]
    if lines:
        yield Hit(f"{len(lines)} lines", evidence=lines[-1])


def killers(node: Node) -> Iterable[Hit]:
    for process in value(node.facts.processes) or ():
        if process.kind == "killer":
            normal = "systemd-oomd" in process.command
            yield Hit(f"{process.command} runs", link=str(process.pid), severity=N if normal else None)


def killed(node: Node) -> Iterable[Hit]:
    lines = node.log("memory")
    if lines:
        yield Hit(f"{len(lines)} lines since boot", evidence=lines[-1])


CHECKS = (
    Check(
        "mem.total",
        ("memory",),
        "119 GiB or more",
        "less; below 110 GiB is an error",
        W,
        "look at kernel.bad: a kernel with kexec handover takes 7.2 GiB",
        "https://forums.developer.nvidia.com/t/383222",
        each=total,
    ),
    Check(
        "mem.avail",
        ("memory",),
        "10 GiB or more available",
        "less; below 5 GiB is an error",
        W,
        "stop what holds it; after an engine's end wait until MemAvailable is back: it lags by minutes",
        f"{UNIFIED} https://github.com/Blackwellboy/model-serving-minefield traps/memory/81",
        each=available,
    ),
    Check(
        "mem.cache",
        ("memory",),
        "little page cache before a load",
        "60 GiB or more: CUDA cannot see it as free",
        N,
        "sync; echo 3 > /proc/sys/vm/drop_caches",
        "https://github.com/unslothai/unsloth/pull/10705",
        each=cache,
    ),
    Check(
        "mem.swap",
        ("memory",),
        "swap hardly used",
        "more than 8 GiB used",
        W,
        "use less memory; after the engine's end swapoff -a; swapon -a",
        "https://github.com/joeynyc/spark-doctor",
        each=swap,
    ),
    Check(
        "mem.psi",
        ("memory",),
        "no memory pressure",
        f"full avg10 above {PRESSURE_HIGH:g} %",
        W,
        "stop what uses the memory",
        "https://github.com/joeynyc/spark-doctor",
        each=pressure,
    ),
    Check(
        "mem.fragmented",
        ("memory",),
        "free blocks of 4 MiB",
        "none although much is free: loading crawls or fails with NV_ERR_NO_MEMORY",
        W,
        "reboot before the next launch; dropping caches and compaction barely help",
        "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/23 "
        "https://github.com/FujitsuPolycom/sparkring/issues/173",
        each=fragmented,
    ),
    Check(
        "mem.nverr",
        ("kernel_log",),
        "NV_ERR_NO_MEMORY lines alone: successful starts log them too",
        "never bad alone",
        N,
        "nothing, unless the engine failed: then look at mem.avail and mem.fragmented",
        "https://github.com/vllm-project/vllm/issues/56824",
        each=no_memory_lines,
    ),
    Check(
        "mem.oomkiller",
        ("processes",),
        "no program that ends others for memory",
        "earlyoom, nohang or dgx-anti-oom: they have ended engines during the load",
        W,
        "stop it on these nodes: the guard of each rank does this work; or exclude the engine",
        "https://github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/issues/31",
        each=killers,
    ),
    Check(
        "mem.oomkilled",
        ("kernel_log",),
        "the kernel ended nothing for memory since boot",
        "it did",
        W,
        "look at what was ended, and at mem.avail",
        UNIFIED,
        each=killed,
    ),
)
