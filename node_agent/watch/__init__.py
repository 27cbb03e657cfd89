"""The `watch` request: samples of this node, streamed on the channel until it is cancelled.

What changes every second is read from /proc, /sys and our own status files at every tick; what costs something
(nvidia-smi, address tables, the engine's metrics page) has a slower pace of its own, which becomes slower still
while a rank serves: a query of nvidia-smi every 2 s costs 0.6 ms of each decode step.
"""

from __future__ import annotations

import resource
import threading
import time
from typing import Any

from node_agent import jobs, process
from node_agent.files import read_json
from node_agent.home import Home
from node_agent.watch import host, page, ranks
from node_agent.watch.gpu import GpuLoop
from node_agent.watch.links import Links
from node_agent.watch.recording import Hardware
from node_agent.wire import Refused, Report

SCHEMA = "sparkyard/sample/v1"
PACE_MIN_S, PACE_MAX_S = 0.2, 300.0
SLOW_S = 60.0
"""Identity of links and results of load probes: they change when a person does something."""
PAGE_S = 5.0
"""The engine renders about 90 KB for one metrics page; no view needs it more often."""


def stream(home: Home, args: dict[str, Any], report: Report, stop: threading.Event) -> dict[str, Any]:
    """One sample each `every_s` seconds as progress, until cancelled. The answer is empty.

    `gpu_every_s` and `gpu_serving_every_s` pace nvidia-smi without and with a serving rank; 0 leaves it alone.
    """
    every_s = _pace(args, "every_s", 2.0)
    gpu = GpuLoop(_pace(args, "gpu_every_s", 5.0), _pace(args, "gpu_serving_every_s", 30.0))
    hardware = Hardware(home.recorded)
    links, engine = Links(), page.Page(PAGE_S)
    boot, number, slow_at = process.boot_id(), 0, 0.0
    began = time.monotonic()
    try:
        while True:
            now = time.monotonic()
            source = hardware.source()
            slow = now >= slow_at
            if slow:
                links.discover(source)
                slow_at = now + SLOW_S
            here = ranks.read(home)
            serving = any(rank["alive"] and rank["phase"] == "ready" for rank in here)
            sample: dict[str, Any] = {
                "schema": SCHEMA,
                "number": number,
                "unix_s": round(time.time(), 3),
                "monotonic_s": round(now, 3),
                "boot_id": boot,
                "every_s": every_s,
                "hardware": source.origin,
                **host.read(home),
                "links": links.read(source),
                "rails_w": host.rails(source),
                "drives": host.drives(),
                "ranks": here,
                "jobs": _jobs(home),
                "desired": read_json(home.desired),
                "agent": _own_cost(),
            }
            if slow:
                sample["probes"] = host.probes(home)
            if (reading := gpu.reading(source, serving=serving)) is not None:
                sample["gpu"] = reading
            if (seen := engine.read(ranks.api(home, here))) is not None:
                sample["engine"] = seen
            report({"sample": sample})
            number += 1
            # The ticks keep their places, so that a slow one does not shift all that follow.
            late = time.monotonic() - began - number * every_s
            if late > every_s:
                began += late
            if stop.wait(max(0.0, began + number * every_s - time.monotonic())):
                return {}
    finally:
        gpu.close()


def _pace(args: dict[str, Any], key: str, default: float) -> float:
    value = float(args.get(key, default))
    if value != 0 and not PACE_MIN_S <= value <= PACE_MAX_S:
        raise Refused(f"{key} is {value:g} s, expected {PACE_MIN_S:g} to {PACE_MAX_S:g}", kind="protocol")
    if value == 0 and key == "every_s":
        raise Refused("every_s is 0, expected a pace", kind="protocol")
    return value


def _jobs(home: Home) -> list[dict[str, Any]]:
    kept = ("id", "kind", "state", "done", "total", "unit", "error")
    return [{key: job[key] for key in kept} for job in jobs.facts(home)[-8:]]


def _own_cost() -> dict[str, Any]:
    """What the agent itself uses, with its children: so that the price of watching is watched too."""
    cpu_s = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        cpu_s += usage.ru_utime + usage.ru_stime
    return {"cpu_s": round(cpu_s, 3), "resident_bytes": host.resident_bytes()}
