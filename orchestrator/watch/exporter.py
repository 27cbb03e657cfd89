"""The exporter's listener: `/metrics`, and `/sd/ranks` for Prometheus' HTTP service discovery. Nothing else."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from orchestrator.errors import ConfigError, SparkyardError
from orchestrator.model.cluster import Cluster
from orchestrator.model.profile import Profile
from orchestrator.view.metrics import StateSource, registry

REQUEST_TIMEOUT_S = 10.0
"""A client that sends nothing for so long is hung up on."""
AT_ONCE_MAX = 16
LOOPBACK_NAMES = frozenset({"localhost"})
StartResponse = Callable[[str, list[tuple[str, str]]], object]


class ListenError(SparkyardError):
    """The exporter's port cannot be had."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, *_: Any) -> None:
        """A scrape is not news."""


class _Server(ThreadingMixIn, WSGIServer):
    """One thread a request, at most `AT_ONCE_MAX`; more are refused instead of piling up."""

    daemon_threads = True
    request_queue_size = AT_ONCE_MAX

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._free = threading.BoundedSemaphore(AT_ONCE_MAX)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """See `BaseServer`."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See `ThreadingMixIn`."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


def targets(profile: Profile, cluster: Cluster) -> list[dict[str, Any]]:
    """The ranks' own metrics pages, in the format of Prometheus' HTTP service discovery.

    Ranks above 0 serve theirs on their node's loopback only; a target is listed only where Prometheus on the head
    can reach it.
    """
    found = []
    for rank, node in enumerate(cluster.ranked[: profile.parallel.tp]):
        here = node.transport == "local" or is_loopback(node.address)
        listen = profile.ports.listen if rank == 0 else "127.0.0.1"
        reachable = "127.0.0.1" if here or rank == 0 else None
        host = reachable if is_loopback(listen) else node.address
        if host is not None:
            labels = {"deployment": profile.name, "node": node.name, "rank": str(rank)}
            found.append({"targets": [f"{host}:{profile.ports.api + node.port_offset}"], "labels": labels})
    return found


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach ``address``."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address in LOOPBACK_NAMES


async def serve_metrics(
    source: StateSource,
    address: str,
    port: int,
    *,
    ranks: list[dict[str, Any]],
    token: str | None = None,
    bound: Callable[[int], None] | None = None,
) -> None:
    """Serve until cancelled. A scrape draws the state that `source` gives; it never asks a node.

    `token`: what a scraper must send as bearer token; needed for any address but loopback. `bound` is told the port
    that was bound (for port 0).

    Raises:
        ConfigError: an address beyond loopback without a token.
        ListenError: the port is taken.
    """
    with make_exporter(source, address, port, ranks, token) as at:
        if bound is not None:
            bound(at)
        await asyncio.Event().wait()


@contextmanager
def make_exporter(
    source: StateSource, address: str, port: int, ranks: list[dict[str, Any]], token: str | None
) -> Iterator[int]:
    """The listener in a thread of its own, for as long as the block runs; gives its port. Raises as `serve_metrics`."""
    if token is None and not is_loopback(address):
        raise ConfigError([f"monitor: listening on {address} needs a token file; loopback does not"])
    try:
        server = make_server(address, port, _application(registry(source), ranks, token), _Server, _Handler)
    except OSError as error:
        raise ListenError(f"monitor: cannot listen on {address}:{port}: {error.strerror}") from None
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    serving.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _application(
    metrics: CollectorRegistry, ranks: list[dict[str, Any]], token: str | None
) -> Callable[[dict[str, Any], StartResponse], Iterable[bytes]]:
    discovery = json.dumps(ranks).encode()

    def answer(environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        def send(status: str, kind: str, body: bytes, *more: tuple[str, str]) -> Iterable[bytes]:
            start(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *more])
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1")
        if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            challenge = ("WWW-Authenticate", "Bearer")
            return send("401 Unauthorized", "text/plain", b"a bearer token is needed\n", challenge)
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return send("405 Method Not Allowed", "text/plain", b"read only\n", ("Allow", "GET, HEAD"))
        match environ.get("PATH_INFO"):
            case "/metrics":
                encode, kind = choose_encoder(environ.get("HTTP_ACCEPT", ""))
                return send("200 OK", kind, encode(metrics))
            case "/sd/ranks":
                return send("200 OK", "application/json", discovery)
        return send("404 Not Found", "text/plain", b"here are /metrics and /sd/ranks\n")

    return answer
