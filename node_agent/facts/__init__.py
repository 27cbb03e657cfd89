"""All facts of one node: the explicit list of readers, and `collect`, which runs them side by side.

A reader that fails, hangs or lacks a right costs its own fact and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from node_agent.facts import (
    cables,
    clock,
    cpu,
    disks,
    dmi,
    docker,
    firmware,
    forwarding,
    gpu,
    host,
    kernel,
    links,
    logs,
    memory,
    nccl,
    netplan,
    network,
    nfs,
    ports,
    probes,
    processes,
    rails,
    release,
    smart,
    thermal,
)
from node_agent.facts.reader import Reader
from node_agent.facts.source import (
    DeniedError,
    Live,
    MissingToolError,
    Recorded,
    Source,
    TimedOutError,
    UnreadableError,
)

__all__ = ["READERS", "SCHEMA", "Live", "Recorded", "collect"]

SCHEMA = "sparkyard/hardware/v1"
READERS: tuple[Reader, ...] = (
    gpu.READER,  # the slowest first, so that it starts first
    docker.READER,
    firmware.READER,
    release.READER,
    links.READER,
    logs.KERNEL_LOG,
    logs.PREVIOUS_BOOT,
    logs.SERVICES_LOG,
    cables.PLUGS,
    cables.LINKS,
    smart.READER,
    forwarding.READER,
    network.READER,
    host.READER,
    kernel.READER,
    dmi.READER,
    clock.READER,
    memory.READER,
    rails.READER,
    thermal.READER,
    cpu.READER,
    netplan.MODES,
    netplan.CONTENTS,
    nccl.READER,
    disks.SPACE,
    disks.DRIVES,
    nfs.READER,
    ports.READER,
    processes.READER,
    probes.READER,
)


def _fact(reader: Reader, source: Source) -> dict[str, Any]:
    started = time.monotonic()
    value: Any = None
    error: dict[str, str] | None = None
    try:
        value = reader.read(source)
    except DeniedError as denied:
        error = {"kind": "right", "text": str(denied)[:300], "need": reader.need or "a right on that path"}
    except MissingToolError as missing:
        error = {"kind": "tool", "text": str(missing)[:300], "need": ""}
    except TimedOutError as late:
        error = {"kind": "timeout", "text": str(late)[:300], "need": ""}
    except UnreadableError as broken:
        error = {"kind": "unreadable", "text": str(broken)[:300], "need": ""}
    except Exception as surprise:  # whatever a machine answers must not cost the other facts
        error = {"kind": "unreadable", "text": f"{type(surprise).__name__}: {surprise}"[:300], "need": ""}
    took_s = round(time.monotonic() - started, 4)
    return {"origin": source.origin, "value": value, "error": error, "took_s": took_s}


def collect(
    live: Source, recorded: Source | None = None, *, timeout_s: float, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Read every fact, or those named in `only`.

    Args:
        live: where facts of the moment come from; all facts when nothing is recorded.
        recorded: where facts of the machine come from instead (the lab).
        timeout_s: bound of the whole; a reader still at work then leaves a fact with the error `timeout`.

    Returns a JSON-able object {"schema", "took_s", "facts": {name: {"origin", "value", "error", "took_s"}}}.
    """
    started = time.monotonic()
    chosen = [reader for reader in READERS if not only or reader.name in only]
    facts: dict[str, dict[str, Any]] = {}

    def work(reader: Reader) -> None:
        fact = _fact(reader, recorded if recorded is not None and reader.hardware else live)
        facts.setdefault(reader.name, fact)

    # Daemon threads: one that hangs in the kernel must not keep the agent from ending.
    threads = [threading.Thread(target=work, args=(reader,), daemon=True) for reader in chosen]
    for thread in threads:
        thread.start()
    for reader, thread in zip(chosen, threads, strict=True):
        left_s = min(started + min(timeout_s, reader.timeout_s) - time.monotonic(), timeout_s)
        thread.join(max(left_s, 0.0))
        if thread.is_alive():
            origin = (recorded if recorded is not None and reader.hardware else live).origin
            text = f"no answer within {min(timeout_s, reader.timeout_s):g} s"
            late = {"kind": "timeout", "text": text, "need": ""}
            facts.setdefault(
                reader.name, {"origin": origin, "value": None, "error": late, "took_s": timeout_s}
            )
    took_s = round(time.monotonic() - started, 4)
    return {
        "schema": SCHEMA,
        "took_s": took_s,
        "facts": {reader.name: facts[reader.name] for reader in chosen},
    }
