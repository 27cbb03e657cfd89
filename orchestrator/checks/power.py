"""Heat and power of the whole unit."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.checks.check import AC_DRAIN, FORUM, Check, E, Hit, Node, W, value

HOT_C, CRITICAL_C = 96.0, 102.0  # the trip point is at 104; healthy units stay below 90
LOW_CAP_W = 60.0  # the safety mode caps the system at 30 W; healthy ceilings are 250 to 300 W
STUCK_KHZ = 2_000_000  # rated 2.8 and 3.9 GHz; a mainline kernel without CPPC stays at 1.37 GHz


def zones(node: Node) -> Iterable[Hit]:
    found = value(node.facts.thermal)
    hottest = max(found or (), key=lambda zone: zone.celsius, default=None)
    if hottest is not None and hottest.celsius >= HOT_C:
        hot = E if hottest.celsius >= CRITICAL_C else None
        yield Hit(f"{hottest.zone} at {hottest.celsius:g} °C", link=hottest.zone, severity=hot)


def prochot(node: Node) -> Iterable[Hit]:
    rails = value(node.facts.rails)
    if rails is not None and rails.prochot:
        yield Hit(f"prochot {rails.prochot}")


def system_cap(node: Node) -> Iterable[Hit]:
    rails = value(node.facts.rails)
    cap = rails.cap_watts.get("syspl1") if rails else None
    if cap is not None and 0 < cap <= LOW_CAP_W:
        supply = rails.watts.get("dc_input") if rails else None
        yield Hit(
            f"syspl1 capped at {cap:g} W", evidence=f"dc_input {supply:g} W" if supply is not None else ""
        )


def cpu_clock(node: Node) -> Iterable[Hit]:
    policies = value(node.facts.cpu) or ()
    ceilings = [item.max_khz or item.hardware_max_khz for item in policies]
    known = [khz for khz in ceilings if khz]
    if known and max(known) < STUCK_KHZ:
        yield Hit(f"no CPU may run faster than {max(known) / 1e6:.2f} GHz")


CHECKS = (
    Check(
        "acpi.zone",
        ("thermal",),
        f"all thermal zones below {HOT_C:g} °C",
        f"{HOT_C:g} °C or more; {CRITICAL_C:g} °C is an error",
        W,
        "clear the air inlets, check that the fans run, update the EC firmware",
        f"{FORUM}377069 {FORUM}378945",
        each=zones,
    ),
    Check(
        "spbm.prochot",
        ("rails",),
        "prochot 0",
        "1: the unit throttles itself",
        E,
        f"{AC_DRAIN}; then see gpu.thermal and acpi.zone",
        "https://github.com/antheas/spark_hwmon",
        each=prochot,
    ),
    Check(
        "spbm.syspl1",
        ("rails",),
        "a system power limit of 250 W or more",
        f"{LOW_CAP_W:g} W or less: the power-delivery safety mode",
        E,
        f"{AC_DRAIN}; update the USB-C PD firmware; return the unit if it stays",
        "https://ai-muninn.com/en/blog/dgx-spark-30w-power-safety-mode",
        each=system_cap,
    ),
    Check(
        "cpu.freq",
        ("cpu",),
        "CPU clocks may rise to 2.8 and 3.9 GHz",
        "no policy allows 2 GHz",
        W,
        "use NVIDIA's kernel: a mainline one without CPPC stays at 1.37 GHz",
        "field reports (mainline kernels)",
        each=cpu_clock,
    ),
)
