"""RDMA bandwidth with perftest's `ib_write_bw`: one node listens, the other sends."""

from __future__ import annotations

import re
from typing import Any

from node_agent.facts.source import Source, TimedOutError
from node_agent.facts.text import lines
from node_agent.probes.gpu import ProbeError

SECONDS = 3
MARGIN_S = 15.0  # connection set-up, and the other side's start
TOOL = "ib_write_bw"
HINT = "perftest is not installed (apt install perftest)"
NAME = re.compile(r"[\w.-]{1,64}")


def parse_bandwidth(text: str) -> float | None:
    """Average bandwidth in Gb/s of the last row of `ib_write_bw --report_gbits`; None when there is no row."""
    found = None
    for item in lines(text):
        cells = item.split()
        # bytes, iterations, peak, average, message rate
        if len(cells) == 5 and all(re.fullmatch(r"\d{1,12}(?:\.\d+)?", cell) for cell in cells):
            found = float(cells[3])
    return found


def command(device: str, gid_index: int, port: int, address: str | None) -> list[str]:
    """The command line of one side. ValueError for a device or address that is none."""
    for text in (device, *([address] if address else [])):
        if not NAME.fullmatch(text.replace(":", "")):
            raise ValueError(f"not a device or address: {text[:80]!r}")
    wanted = [TOOL, "-d", device, "-x", str(int(gid_index)), "-p", str(int(port)), "-D", str(SECONDS)]
    return [*wanted, "-F", "--report_gbits", *([address] if address else [])]


def run(source: Source, device: str, gid_index: int, port: int, address: str | None) -> dict[str, Any]:
    """One side. Listens when `address` is None, and then tells no rate. ProbeError when it cannot."""
    try:
        ran = source.run(*command(device, gid_index, port, address), timeout_s=SECONDS + MARGIN_S)
    except TimedOutError as error:
        raise ProbeError(f"rdma: {error}") from error
    if ran is None:
        raise ProbeError(HINT)
    rate = parse_bandwidth(ran.out)
    if ran.status != 0 or (address is not None and rate is None):
        raise ProbeError(f"rdma: {TOOL} on {device}: {' '.join((ran.err or ran.out).split())[-300:]}")
    return {"gbps": rate}
