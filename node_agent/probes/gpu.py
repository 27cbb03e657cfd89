"""GPU probes as the agent runs them: the load in a child process, clocks and power sampled beside it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import node_agent
from node_agent.facts import gpu
from node_agent.facts.source import Source, TimedOutError

Report = Callable[[dict[str, Any]], None]
BURN_S = 12.0  # the clock of a latched unit is low from the first second; the first two samples are left out
GEMV_S = 60.0  # the slow state flips every 7 to 32 s
SETTLE_S = 2.0
SAMPLE_EVERY_S = 1.0
MARGIN_S = 30.0  # context creation and compilation of the PTX
CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); from node_agent.probes.cuda import main; "
    "sys.exit(main(sys.argv[2], float(sys.argv[3])))"
)


class ProbeError(Exception):
    """The probe could not run; the text says why and what would help."""


def package_place() -> str:
    """The folder or zip file that holds the package."""
    return str(Path(node_agent.__file__).resolve().parent.parent)


def _sample(source: Source, at_s: float) -> dict[str, Any] | None:
    try:
        ran = source.run(*gpu.QUERY, timeout_s=gpu.QUERY_TIMEOUT_S)
        reasons = source.run(*gpu.REASONS, timeout_s=gpu.QUERY_TIMEOUT_S)
    except TimedOutError:
        return None
    devices = gpu.parse_devices(ran.out) if ran else []
    if not devices:
        return None
    bits = gpu.parse_reasons(reasons.out) if reasons and reasons.status == 0 else {}
    first = devices[0]
    kept = {key: first[key] for key in ("sm_mhz", "power_w", "temperature_c", "utilization_percent")}
    return {"at_s": round(at_s, 2), **kept, "reasons": bits.get(first["index"])}


def run(kind: str, seconds: float, source: Source, report: Report, *, sample: bool) -> dict[str, Any]:
    """One probe in a child of its own session. ProbeError when the driver is missing, refuses or hangs."""
    command = [sys.executable, "-I", "-c", CHILD, package_place(), kind, str(seconds)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    started = time.monotonic()
    deadline = started + seconds + MARGIN_S
    result: dict[str, Any] | None = None
    samples: list[dict[str, Any]] = []
    loaded_at: float | None = None
    buffer = b""
    assert child.stdout is not None  # noqa: S101 - for the type checker: stdout=PIPE
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            open_ = True
            while open_:
                if time.monotonic() > deadline:
                    raise ProbeError(f"{kind}: no end after {seconds + MARGIN_S:g} s; the driver hangs")
                if selector.select(timeout=SAMPLE_EVERY_S):
                    data = os.read(child.stdout.fileno(), 65536)
                    open_ = bool(data)
                    buffer += data
                    *lines, buffer = buffer.split(b"\n")
                    for line in lines:
                        message = json.loads(line)
                        if "error" in message:
                            raise ProbeError(f"{kind}: {message['error']}")
                        if "progress" in message:
                            loaded_at = loaded_at or time.monotonic()
                            report({"probe": kind, **message["progress"]})
                        result = message.get("result", result)
                if sample and loaded_at is not None and result is None:
                    at_s = time.monotonic() - loaded_at
                    if at_s >= SETTLE_S and (not samples or at_s - samples[-1]["at_s"] >= SAMPLE_EVERY_S):
                        seen = _sample(source, at_s)
                        if seen:
                            samples.append(seen)
                            report({"probe": kind, **seen})
        child.wait(timeout=MARGIN_S)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        errors = child.stderr.read().decode("utf-8", "replace") if child.stderr else ""
        child.stdout.close()
        if child.stderr:
            child.stderr.close()
    if result is None:
        raise ProbeError(f"{kind}: ended with status {child.returncode}: {errors.strip()[-300:]}")
    return {"unix_s": time.time(), **({"seconds": seconds, "samples": samples} if sample else {}), **result}


def burn(source: Source, report: Report, seconds: float = BURN_S) -> dict[str, Any]:
    """A `burn` result: {"unix_s", "seconds", "tflops", "samples"}."""
    return run("burn", seconds, source, report, sample=True)


def gemv(source: Source, report: Report, seconds: float = GEMV_S) -> dict[str, Any]:
    """A `gemv` result: {"unix_s", "gigabytes_per_s", "copy_gigabytes_per_s"}."""
    return run("gemv", seconds, source, report, sample=False)
