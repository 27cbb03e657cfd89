"""A real all-reduce over all nodes: each node runs one rank, in the engine's image or with the engine's Python."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from typing import Any

from node_agent.probes.gpu import ProbeError

TIMEOUT_S = 120.0  # the first contact of the ranks, the compilation of nothing, a few seconds of traffic
LOG_LINES = 40
# 256 MiB, as field reports use (13.86 GB/s healthy on one pair of links); 16 MiB over gloo, which is the lab's.
PROGRAM = r"""
import datetime, json, os, time
import torch, torch.distributed as dist
cuda = torch.cuda.is_available()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ.get("SPARKYARD_DEVICE", "0"))) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=60))
count = (256 if cuda else 16) * 2**20 // 4
data = torch.full((count,), float(rank + 1), device=device)
dist.all_reduce(data)
wanted = world * (world + 1) / 2
right = bool((data[:: max(1, count // 4096)] == wanted).all())
def wait():
    if cuda:
        torch.cuda.synchronize()
for _ in range(2):
    dist.all_reduce(data)
wait()
dist.barrier()
begin = time.monotonic()
turns = 10 if cuda else 3
for _ in range(turns):
    dist.all_reduce(data)
wait()
took = (time.monotonic() - begin) / turns
bus = count * 4 / took * 2 * (world - 1) / world / 1e9
version = ".".join(str(part) for part in torch.cuda.nccl.version()) if cuda else ""
print("SPARKYARD " + json.dumps({"right": right, "gigabytes_per_s": round(bus, 3), "nccl": version,
                                 "backend": "nccl" if cuda else "gloo"}), flush=True)
dist.destroy_process_group()
"""


def parse(text: str) -> dict[str, Any]:
    """What the rank printed: its result, and the transport that NCCL's log names. ProbeError without a result."""
    found = re.search(r"^SPARKYARD (\{.*\})\s*$", text, re.MULTILINE)
    if not found:
        raise ProbeError("allreduce: the rank ended without a result")
    result = json.loads(found.group(1))
    used = re.findall(r"NET/(IB|Socket) : Using", text) or re.findall(
        r"via (P2P|SHM|NET/IB|NET/Socket)", text
    )
    transport = "gloo" if result["backend"] == "gloo" else (used[0] if used else "unknown")
    if transport in ("IB", "Socket"):
        transport = f"NET/{transport}"
    return {
        "gigabytes_per_s": float(result["gigabytes_per_s"]),
        "transport": transport,
        "right": bool(result["right"]),
    }


def run(command: list[str], env: dict[str, str], cleanup: list[str] | None) -> dict[str, Any]:
    """Run one rank to its end; an `allreduce` result, `ok` false when the collective failed.

    Args:
        command: what starts Python with `PROGRAM`.
        env: rank, world, rendezvous, and the variables that name this node's devices.
        cleanup: run when the rank did not end in time (removes its container).
    """
    full = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/"), **env}
    pipe = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        child = subprocess.Popen(command, env=full, start_new_session=True, **pipe)  # type: ignore[call-overload]
    except OSError as error:
        raise ProbeError(f"allreduce: {command[0]}: {error.strerror}") from error
    try:
        out, _ = child.communicate(timeout=TIMEOUT_S)
        text = out.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        text = child.communicate()[0].decode("utf-8", "replace") + f"\nno end after {TIMEOUT_S:g} s"
        if cleanup:
            subprocess.run(cleanup, capture_output=True, timeout=TIMEOUT_S, check=False)
    tail = "\n".join(text.splitlines()[-LOG_LINES:])[-3500:]
    base = {"unix_s": time.time(), "text": tail}
    try:
        found = parse(text)
    except ProbeError:
        return {**base, "ok": False}
    right = found.pop("right")
    return {**base, **found, "ok": right and child.returncode == 0}
