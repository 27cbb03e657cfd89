"""A read-only way to a registry on another node: for this node's engine on loopback, and for the nodes behind it.

An engine trusts a registry without TLS on loopback only, so each node gets one there; the token that opens the way
between the nodes is added here and never reaches an engine or a command line. Nothing is stored.
"""

from __future__ import annotations

import hmac
import http.client
import http.server
import re
import threading
import time
from pathlib import Path
from typing import Any

from node_agent.image.flight import CHUNK_BYTES, PAUSE_MAX_S, Flights, Lane, LaneBroken, NotThere

SMALL_MAX_BYTES = 4 << 20
OBJECT = re.compile(r"^/v2/([a-z0-9][a-z0-9/._-]*)/(blobs|manifests)/([A-Za-z0-9._:-]+)$")
CLIENT_TIMEOUT_S = 60.0
SMALL_PATIENCE_S = 30.0
NAME_MAX_BYTES = 256
LANES_A_RAIL = 2
"""Two requests in turn keep a rail busy while one of them is between two pieces."""
DONE = "/v2/_done"
"""A node behind this one says that it needs nothing more."""
READY = "/v2/_ready"
"""A node behind this one is about to read: who starts together reads together."""


class Relay:
    """Serves until closed."""

    def __init__(self, sources: list[list[str]], source_token: str, token: str) -> None:
        """``sources``: addresses `host:port` of each source, one a rail, the preferred source first."""
        self.lanes = [
            Lane(address.rpartition(":")[0], int(address.rpartition(":")[2]), source_token, rank)
            for rank, rails in enumerate(sources)
            for address in rails
            for _ in range(LANES_A_RAIL)
        ]
        self.flights = Flights(self.lanes, memory_available_bytes())
        self.bytes_to_engine = 0
        self.bytes_to_nodes = 0
        self.finished: set[str] = set()
        self.ready: set[str] = set()
        self.last_request_s = time.monotonic()
        self._token = token
        self._servers: list[http.server.ThreadingHTTPServer] = []
        self._sizes: dict[str, tuple[int, str]] = {}
        self._small: dict[str, tuple[bytes, str]] = {}

    def listen(self, address: str, port: int, *, open_to_all: bool) -> int:
        """Open a listener; its port. ``open_to_all`` is for loopback only, everything else wants the token."""
        relay = self

        class Handler(_Handler):
            owner = relay
            trusted = open_to_all

        server = _Server((address, port), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
        self._servers.append(server)
        return int(server.server_address[1])

    def close(self) -> None:
        """End all listeners and fetches."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self.flights.close()

    @property
    def bytes_in(self) -> int:
        """Bytes that came over the fabric."""
        return sum(lane.bytes_in for lane in self.lanes)

    def rails(self) -> dict[str, tuple[int, float, str]]:
        """Of the preferred source: address -> bytes that came from it, bytes per second, why it fails now."""
        found: dict[str, tuple[int, float, str]] = {}
        for lane in self.lanes:
            if lane.rank == 0:
                size, rate, _ = found.get(lane.host, (0, 0.0, ""))
                fault = lane.fault if lane.failing_since_s is not None else ""
                found[lane.host] = size + lane.bytes_in, rate + lane.bytes_per_s / LANES_A_RAIL, fault
        return found

    def allowed(self, given: str) -> bool:
        """Whether a request carries this run's token."""
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    def size(self, path: str) -> tuple[int, str]:
        """Size and type of a blob at the source."""
        if path not in self._sizes:
            headers, _ = self._ask("HEAD", path)
            self._sizes[path] = int(headers["Content-Length"]), headers.get("Content-Type", "")
        return self._sizes[path]

    def small(self, path: str) -> tuple[bytes, str]:
        """A manifest: bytes and type."""
        if path not in self._small:
            headers, data = self._ask("GET", path)
            self._small[path] = data, headers.get("Content-Type", "")
        return self._small[path]

    def tell(self, word: str, node: str) -> bool:
        """Tell the preferred source that this node is `READY`, or all that it is `DONE`; False when none heard it."""
        heard = False
        told = [lane for lane in self.lanes if lane.rank == 0 or word == DONE]
        for lane in {(lane.host, lane.port): lane for lane in told}.values():
            connection = lane.connect()
            try:
                connection.request("POST", word, body=node.encode(), headers=lane.headers())
                heard |= connection.getresponse().status == 204
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()
        return heard

    def _ask(self, method: str, path: str) -> tuple[Any, bytes]:
        deadline = time.monotonic() + SMALL_PATIENCE_S
        pause_s = 0.2
        while True:
            words = ""
            for lane in self.lanes[::LANES_A_RAIL]:
                connection = lane.connect()
                headers = lane.headers() | {"Accept": "*/*"}
                try:
                    connection.request(method, path, headers=headers)
                    response = connection.getresponse()
                    data = response.read(SMALL_MAX_BYTES)
                except (OSError, http.client.HTTPException) as error:
                    words = f"http://{lane.host}:{lane.port}: {error or type(error).__name__}"
                    continue
                finally:
                    connection.close()
                if response.status == 200:
                    lane.count(len(data))
                    return response.headers, data
                if 400 <= response.status < 500:
                    raise NotThere(f"http://{lane.host}:{lane.port} answered {response.status} to {path}")
                words = f"http://{lane.host}:{lane.port} answered {response.status} to {method} {path}"
            if time.monotonic() > deadline:
                raise LaneBroken(words)
            time.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)


def memory_available_bytes() -> int:
    """MemAvailable of /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # an engine and two nodes with several lanes each connect at the same moment


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = CLIENT_TIMEOUT_S
    owner: Relay
    trusted: bool

    def do_GET(self) -> None:
        self._serve(with_body=True)

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def do_POST(self) -> None:
        """Only the word of a node that is ready or done."""
        said = {READY: self.owner.ready, DONE: self.owner.finished}.get(self.path)
        length = self.headers.get("Content-Length", "")
        if said is None or not self._may() or not length.isdigit() or not 0 < int(length) <= NAME_MAX_BYTES:
            self.close_connection = True
            self._empty(403)
            return
        said.add(self.rfile.read(int(length)).decode("utf-8", "replace"))
        self._empty(204)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing: requests are counted, not logged."""

    def _may(self) -> bool:
        return self.trusted or self.owner.allowed(self.headers.get("Authorization", ""))

    def _empty(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _serve(self, *, with_body: bool) -> None:
        if not self._may():
            self._empty(403)
            return
        self.owner.last_request_s = time.monotonic()
        if self.path == "/v2/":
            self._send(200, b"{}", "application/json", with_body)
            return
        found = OBJECT.match(self.path)
        try:
            if found is None:
                self._empty(404)
            elif found.group(2) == "manifests":
                self._send(200, *self.owner.small(self.path), with_body)
            else:
                self._blob(found.group(3), with_body)
        except NotThere:
            self._empty(404)
        except (LaneBroken, KeyError) as error:
            self._send(502, f"{error}\n".encode(), "text/plain", with_body)
        except OSError:
            self.close_connection = True  # the reader went away

    def _send(self, status: int, body: bytes, kind: str, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _blob(self, digest: str, with_body: bool) -> None:
        size, kind = self.owner.size(self.path)
        begin, end, partial = _range(self.headers.get("Range", ""), size)
        if with_body:  # waited for before the head goes out: what follows the head shows how fast the link is
            self.owner.flights.chunk(self.path, size, begin // CHUNK_BYTES)
        self.send_response(206 if partial else 200)
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Docker-Content-Digest", digest)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        if partial:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if not with_body:
            return
        try:
            while begin < end:
                index = begin // CHUNK_BYTES
                chunk = self.owner.flights.chunk(self.path, size, index)
                offset = begin - index * CHUNK_BYTES
                piece = memoryview(chunk)[offset : offset + end - begin]
                self.wfile.write(piece)
                begin += len(piece)
                self._count(len(piece))
        except (LaneBroken, NotThere):
            self.close_connection = True  # the reader sees a short body and asks for the rest

    def _count(self, size: int) -> None:
        self.owner.last_request_s = time.monotonic()
        if self.trusted:
            self.owner.bytes_to_engine += size
        else:
            self.owner.bytes_to_nodes += size


def _range(header: str, size: int) -> tuple[int, int, bool]:
    """First byte, the byte after the last one, and whether a range was asked for; everything for an unusable one."""
    found = re.match(r"^bytes=(\d+)-(\d*)$", header)
    if found is None or int(found.group(1)) >= size:
        return 0, size, False
    begin = int(found.group(1))
    end = min(size, int(found.group(2)) + 1) if found.group(2) else size
    return (begin, end, True) if begin < end else (0, size, False)
