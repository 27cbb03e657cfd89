"""The two things the guard watches from threads: memory, and the rank's own loopback ports."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

MEMORY_PERIOD_S = 0.25  # the fastest collapse reported took 7 s from 27 to 6 GiB
PORT_PERIOD_S = 1.0
PORT_TIMEOUT_S = 2.0
LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class Memory:
    """Host memory in bytes: the last sample and the lowest since the start."""

    available_bytes: int
    low_water_bytes: int
    free_low_water_bytes: int

    @classmethod
    def now(cls) -> Memory:
        """A first sample."""
        seen = psutil.virtual_memory()
        return cls(seen.available, seen.available, seen.free)


def watch_memory(
    memory: Memory, floor_bytes: int, ended: threading.Event, on_floor: Callable[[int], None]
) -> None:
    """Sample until `ended`; below the floor call `on_floor` once, here: it must not wait for a disk."""
    while not ended.wait(MEMORY_PERIOD_S):
        seen = psutil.virtual_memory()
        memory.available_bytes = seen.available
        memory.low_water_bytes = min(memory.low_water_bytes, seen.available)
        memory.free_low_water_bytes = min(memory.free_low_water_bytes, seen.free)
        if seen.available < floor_bytes:
            on_floor(seen.available)
            return


def watch_ports(
    rank: int,
    api_port: int | None,
    gate_port: int | None,
    ended: threading.Event,
    on_joined: Callable[[], None],
    on_ready: Callable[[], None],
) -> None:
    """Look at the ports until the rank is ready: rank 0 answers `/ready`, another rank opens its port.

    Only a port that this guard's own processes listen on says anything: a stranger that has it is not this engine.
    """
    joined = gate_port is None or rank != 0  # only rank 0 serves the gate
    while not ended.wait(PORT_PERIOD_S):
        if not joined and gate_port is not None and is_open(gate_port) and is_ours(gate_port):
            joined = True
            on_joined()
        if api_port is None or not (answers_ready(api_port) if rank == 0 else is_open(api_port)):
            continue
        if is_ours(api_port):
            on_ready()
            return


def is_open(port: int) -> bool:
    """Whether something accepts connections on the loopback port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=PORT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def is_ours(port: int) -> bool:
    """Whether a descendant of this process listens on the port."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            # psutil 6 renamed it; an image with its own SGLang, and Debian 12, may have an older one
            connections = getattr(process, "net_connections", None) or process.connections
            for found in connections("tcp"):
                if found.status == psutil.CONN_LISTEN and found.laddr.port == port:
                    return True
    return False


def answers_ready(port: int) -> bool:
    """Whether `GET /ready` gives 200."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PORT_TIMEOUT_S)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
