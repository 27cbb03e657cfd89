"""The GPU: is it there, does it run as fast as it should, and who else uses it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.checks.check import (
    AC_DRAIN,
    FORUM,
    PROBE_MAX_AGE_S,
    Check,
    E,
    Hit,
    N,
    Node,
    W,
    Yard,
    gib,
    value,
    version,
)
from orchestrator.model.finding import Confidence
from orchestrator.model.hardware import GpuDevice
from orchestrator.model.probes import BurnSample, GemvProbe

LATCH_MHZ = 1400.0  # hoesing/spark-gpu-throttle-check, sparkview, nvcheckup; healthy is 2100 to 2525
LATCH_W = 40.0
BUSY_PERCENT = 90.0
MIN_SAMPLES = 5
LOCKED_MHZ = (2000.0, 2200.0)
LOCKED_SPREAD_MHZ = 30.0
HOT_C, TOO_HOT_C = 85.0, 88.0
SW_THERMAL, HW_THERMAL = 0x20, 0x40
GEMV_FAST, GEMV_SLOW = 150.0, 110.0  # GB/s; bands of the report, 224–233 fast and 66–80 slow
DRIVER_BRANCH, DRIVER_FLOOR = 580, (580, 142)
TORN_XIDS = ("119", "120")
FOREIGN_BYTES = 1024**3
CAP_TOLERANCE_MHZ = 60.0  # clocks snap to steps
MINEFIELD = "https://github.com/Blackwellboy/model-serving-minefield"
GPU_CHECK = "https://github.com/hoesing/spark-gpu-throttle-check"


def devices(node: Node) -> tuple[GpuDevice, ...]:
    gpu = value(node.facts.gpu)
    return gpu.devices if gpu else ()


def burn_samples(node: Node, yard: Yard) -> tuple[BurnSample, ...]:
    """Samples of a fresh burn while the GPU was busy."""
    probes = value(node.facts.probes)
    burn = probes.burn if probes else None
    if burn is None or yard.now_unix_s - burn.unix_s > PROBE_MAX_AGE_S:
        return ()
    return tuple(item for item in burn.samples if (item.utilization_percent or 0) >= BUSY_PERCENT)


def median(numbers: Iterable[float]) -> float:
    """Middle of some numbers; of an even count the lower one. ValueError when there are none."""
    ordered = sorted(numbers)
    if not ordered:
        raise ValueError("median of nothing")
    return ordered[(len(ordered) - 1) // 2]


def present(node: Node) -> Iterable[Hit]:
    fact = node.facts.gpu
    if fact is None:
        return
    if fact.error is not None:
        if fact.error.kind == "timeout":
            yield Hit("nvidia-smi does not answer", evidence=fact.error.text)
        return
    gpu = fact.value
    if gpu is None:
        yield Hit("nvidia-smi is not installed")
    elif gpu.failure:
        yield Hit(gpu.failure)
    elif not any("GB10" in (item.name or "") for item in gpu.devices):
        names = ", ".join(item.name or "?" for item in gpu.devices)
        yield Hit(f"no GB10: {names}", severity=N)


def xid(node: Node) -> Iterable[Hit]:
    lines = node.log("nvidia")
    torn = [line for line in lines if "RmInitAdapter failed" in line or re.search(r"Xid.*: (119|120),", line)]
    others = [line for line in lines if "Xid" in line and line not in torn]
    if torn:
        yield Hit(f"{len(torn)} lines: driver and firmware do not fit", evidence=torn[-1])
    elif others:
        remedy = "usually the fault of a program; look the number up in NVIDIA's list"
        yield Hit(f"{len(others)} Xid lines since boot", evidence=others[-1], severity=W, remedy=remedy)


def driver(node: Node) -> Iterable[Hit]:
    for item in devices(node):
        found = version(item.driver)
        if not found:
            continue
        if found[0] != DRIVER_BRANCH:
            yield Hit(f"{item.driver}")
        elif found[:2] < DRIVER_FLOOR:
            yield Hit(f"{item.driver}, older than 580.142", severity=N)


def driver_equal(yard: Yard) -> Iterable[Hit]:
    found = {node.name: devices(node)[0].driver for node in yard.seen if devices(node)}
    if len({text for text in found.values() if text}) > 1:
        yield Hit(", ".join(f"{name} {text}" for name, text in found.items()))


def latch(node: Node, yard: Yard) -> Iterable[Hit]:
    samples = burn_samples(node, yard)
    if len(samples) >= MIN_SAMPLES:
        clock = median(item.sm_mhz for item in samples if item.sm_mhz is not None)
        power = median(item.power_w or 0.0 for item in samples)
        if clock < LATCH_MHZ and power < LATCH_W:
            yield Hit(f"{clock:g} MHz at {power:g} W under full load, {len(samples)} samples")
        return
    for item in devices(node):
        busy = (item.utilization_percent or 0) >= BUSY_PERCENT
        low = item.sm_mhz is not None and item.sm_mhz < LATCH_MHZ
        if busy and low and item.power_w is not None and item.power_w < LATCH_W:
            shown = f"{item.sm_mhz:g} MHz at {item.power_w:g} W and {item.utilization_percent:g} % busy, one sample"
            yield Hit(shown, confidence=Confidence.MEDIUM)


def locked(node: Node, yard: Yard) -> Iterable[Hit]:
    samples = burn_samples(node, yard)
    clocks = [item.sm_mhz for item in samples if item.sm_mhz is not None]
    thermal = any((item.reasons or 0) & (SW_THERMAL | HW_THERMAL) for item in samples)
    if len(clocks) < MIN_SAMPLES or thermal:
        return
    low, high = min(clocks), max(clocks)
    if LOCKED_MHZ[0] <= low and high <= LOCKED_MHZ[1] and high - low <= LOCKED_SPREAD_MHZ:
        yield Hit(f"{low:g} to {high:g} MHz under load: looks like a clock cap")


def thermal(node: Node, yard: Yard) -> Iterable[Hit]:
    shown = [(item.temperature_c, item.reasons, item.sm_mhz) for item in devices(node)]
    shown += [(item.temperature_c, item.reasons, item.sm_mhz) for item in burn_samples(node, yard)]
    worst = max(shown, key=lambda row: row[0] or 0.0, default=None)
    bits = 0
    for _, reasons, _ in shown:
        bits |= reasons or 0
    if worst is None:
        return
    heat = f"{worst[0]:g} °C" if worst[0] is not None else "temperature unknown"
    if bits & HW_THERMAL or (worst[0] or 0) >= TOO_HOT_C:
        named = ", hardware thermal slowdown" if bits & HW_THERMAL else ""
        yield Hit(f"{heat}{named}", severity=E)
    elif bits & SW_THERMAL or (worst[0] or 0) >= HOT_C:
        named = ", software thermal slowdown" if bits & SW_THERMAL else ""
        yield Hit(f"{heat}{named}")


def gemv_of(node: Node, yard: Yard) -> GemvProbe | None:
    probes = value(node.facts.probes)
    found = probes.gemv if probes else None
    return found if found and yard.now_unix_s - found.unix_s <= PROBE_MAX_AGE_S else None


def slow_state(node: Node, yard: Yard) -> Iterable[Hit]:
    found = gemv_of(node, yard)
    rates = found.gigabytes_per_s if found else ()
    slow = [rate for rate in rates if rate <= GEMV_SLOW]
    if slow:
        copy = f", copies {found.copy_gigabytes_per_s:g} GB/s" if found and found.copy_gigabytes_per_s else ""
        yield Hit(f"{len(slow)} of {len(rates)} seconds slow: {min(rates):g} to {max(rates):g} GB/s{copy}")


def not_available(node: Node) -> Iterable[Hit]:
    for item in devices(node):
        if item.memory_mib is None:
            yield Hit("nvidia-smi shows no memory size: GPU and CPU share one pool")


def pcie_x1(node: Node) -> Iterable[Hit]:
    for item in devices(node):
        if (item.pcie_generation, item.pcie_width) == (1, 1):
            yield Hit("PCIe generation 1 x1: the GPU hangs on NVLink-C2C, not on PCIe")


def foreign(node: Node) -> Iterable[Hit]:
    gpu, docker = value(node.facts.gpu), value(node.facts.docker)
    ours = {
        item.id
        for item in (docker.containers if docker else ())
        if any(key.startswith("sparkyard") for key in item.labels)
    }
    named: set[int] = set()
    for app in gpu.apps if gpu else ():
        if (app.bytes or 0) < FOREIGN_BYTES or (app.container and app.container in ours):
            continue
        named.add(app.pid)
        where = f" in container {app.container}" if app.container else ""
        text = f"{app.name} (pid {app.pid}, {app.user or 'another user'}{where}) holds {gib(app.bytes or 0)}"
        yield Hit(text, link=str(app.pid))
    for process in value(node.facts.processes) or ():
        big = process.resident_bytes >= FOREIGN_BYTES
        known = process.pid in named or (process.container and process.container in ours)
        if process.kind == "holder" and big and not known:
            text = f"{process.command} (pid {process.pid}) holds {gib(process.resident_bytes)}"
            yield Hit(text, link=str(process.pid))


def cap_lost(node: Node, yard: Yard) -> Iterable[Hit]:
    kernel = value(node.facts.kernel)
    cap = kernel.clock_cap_mhz if kernel else None
    if cap is None:
        return
    clocks = [item.sm_mhz for item in burn_samples(node, yard) if item.sm_mhz is not None]
    clocks += [item.sm_mhz for item in devices(node) if item.sm_mhz is not None]
    if clocks and max(clocks) > cap + CAP_TOLERANCE_MHZ:
        yield Hit(f"{max(clocks):g} MHz, although a start-up file caps the clock at {cap} MHz")


CHECKS = (
    Check(
        "gpu.present",
        ("gpu",),
        "one NVIDIA GB10",
        "no device, versions that do not fit, or nvidia-smi hangs",
        E,
        "finish the pending update and reboot; driver and firmware must come from one release",
        f"{FORUM}373394",
        each=present,
        sees_errors=True,
    ),
    Check(
        "gpu.xid",
        ("kernel_log",),
        "no Xid line since boot",
        "Xid 119 or 120, or RmInitAdapter failed: driver and firmware are torn",
        E,
        f"finish the over-the-air update, then {AC_DRAIN}",
        f"{FORUM}373394",
        each=xid,
    ),
    Check(
        "gpu.driver",
        ("gpu",),
        "580 branch, 580.142 or newer",
        "590, 595 and 610 are not supported here",
        W,
        "go back to the 580 branch",
        f"{FORUM}364688 {FORUM}373994",
        each=driver,
    ),
    Check(
        "gpu.driver_equal",
        ("gpu",),
        "the same driver on all nodes",
        "different ones",
        W,
        "bring all nodes to one driver",
        "https://github.com/thatcooperguy/nvcheckup",
        whole=driver_equal,
        needs_peers=True,
    ),
    Check(
        "gpu.latch",
        ("gpu", "probes"),
        "2000 MHz or more under a compute load",
        f"below {LATCH_MHZ:g} MHz and {LATCH_W:g} W while busy: the low-power latch",
        E,
        f"{AC_DRAIN}; use the original 240 W supply; if it comes back: USB-C PD firmware, then return the unit",
        f"{FORUM}376039 {FORUM}370304 {GPU_CHECK}",
        within=latch,
        deep="burn",
    ),
    Check(
        "gpu.locked",
        ("probes",),
        "the clock moves with the load",
        "a flat clock between 2000 and 2200 MHz",
        N,
        "nothing if the cap is wanted; otherwise nvidia-smi -rgc",
        MINEFIELD,
        within=locked,
        confidence=Confidence.LOW,
    ),
    Check(
        "gpu.thermal",
        ("gpu", "probes"),
        f"below {HOT_C:g} °C, no thermal slowdown",
        f"{HOT_C:g} °C or software slowdown; {TOO_HOT_C:g} °C or hardware slowdown is an error",
        W,
        "clear the air inlets; cap the clock with nvidia-smi -lgc 300,2100",
        f"{FORUM}380238",
        within=thermal,
    ),
    Check(
        "gpu.slow_state",
        ("probes",),
        f"small matrix-vector products at {GEMV_FAST:g} GB/s or more",
        f"{GEMV_SLOW:g} GB/s or less for seconds at a time, at unchanged clocks",
        W,
        "no cure is known; BIOS 5.36_0ACUM027, driver 580.173.02 and kernel 6.17.0-1032 have not shown it",
        "https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1",
        within=slow_state,
        deep="gemv",
    ),
    Check(
        "gpu.na_fields",
        ("gpu",),
        "memory, power limit, fan and memory clock are N/A on GB10",
        "never bad",
        N,
        "nothing",
        "https://github.com/XuehaiPan/nvitop/pull/208",
        each=not_available,
    ),
    Check(
        "gpu.pcie_x1",
        ("gpu",),
        "generation 1 x1 is what GB10 shows",
        "never bad",
        N,
        "nothing",
        "https://github.com/thatcooperguy/nvcheckup",
        each=pcie_x1,
    ),
    Check(
        "gpu.foreign",
        ("gpu", "processes", "docker"),
        "nobody else holds GPU memory",
        "a process that is not ours holds 1 GiB or more",
        W,
        "stop it yourself: sparkyard never ends what it did not start",
        "https://github.com/FujitsuPolycom/sparkring/pull/267",
        each=foreign,
    ),
    Check(
        "gpu.cap_lost",
        ("gpu", "kernel", "probes"),
        "the clock stays under the cap that a start-up file sets",
        "above it: -lgc is lost at a reboot or a driver reset",
        W,
        "run the start-up unit again (nvidia-smi -lgc …)",
        "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/193",
        within=cap_lost,
    ),
)
