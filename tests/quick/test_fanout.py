"""Who sends to whom, and that the relay fetches once what several read."""

from __future__ import annotations

import http.client
import http.server
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.image.flight import CHUNK_BYTES, FALLBACK_AFTER_S, SLOW_TRY_S, Lane
from node_agent.image.pull import slow_rails
from node_agent.image.relay import DONE, READY, Relay
from orchestrator.plan.fanout import Port, tree

FAST = 200_000
BLOB = "/v2/a/blobs/sha256:" + "1" * 64


def _ports(count: int, shape: str) -> dict[str, list[Port]]:
    """As the yard and real fleets are cabled, with the management network beside it."""
    ports = {}
    for i in range(1, count + 1):
        before = (i - 2) % count + 1
        if shape == "switch":
            fast = [Port(f"10.1.0.{i}/24", FAST), Port(f"10.2.0.{i}/24", FAST)]
        else:
            fast = [Port(f"10.1.{i}.1/30", FAST), Port(f"10.1.{before}.2/30", FAST)]
        ports[f"n{i}"] = [Port(f"10.9.0.{i}/24", 10_000), *fast]
    return ports


def test_a_switch_makes_a_chain_over_both_rails() -> None:
    ways, cut_off = tree("n1", _ports(4, "switch"))
    assert not cut_off
    assert ways["n1"].readers == ("n2",)
    assert ways["n2"].readers == ("n3",)
    assert ways["n2"].sources[0].addresses == ("10.1.0.1", "10.2.0.1")
    assert [source.node for source in ways["n4"].sources] == ["n3", "n1"]
    assert ways["n3"].listen == ("10.1.0.3", "10.2.0.3")


def test_a_triangle_is_fed_by_the_head_over_its_two_cables() -> None:
    ways, _ = tree("n1", _ports(3, "ring"))
    assert ways["n1"].readers == ("n2", "n3")
    assert ways["n2"].sources[0].addresses == ("10.1.1.1",)
    assert ways["n3"].sources[0].addresses == ("10.1.3.2",)


def test_in_a_ring_of_four_a_neighbour_passes_it_on() -> None:
    ways, cut_off = tree("n1", _ports(4, "ring"))
    assert not cut_off
    assert set(ways["n1"].readers) == {"n2", "n4"}
    assert [source.node for source in ways["n3"].sources] == ["n2"]


def test_a_node_without_a_fast_link_is_named() -> None:
    ports = _ports(3, "ring")
    ports["n4"] = [Port("10.9.0.4/24", 10_000)]
    assert tree("n1", ports)[1] == ("n4",)


def test_without_fast_links_the_only_network_is_used() -> None:
    ports = {name: [Port(f"10.9.0.{i}/24", 0)] for i, name in enumerate(("n1", "n2", "n3"), 1)}
    ways, cut_off = tree("n1", ports)
    assert not cut_off
    assert ways["n2"].sources[0].addresses == ("10.9.0.1",)


@settings(deadline=None, derandomize=True)
@given(st.integers(3, 8), st.sampled_from(["switch", "ring"]))
def test_everybody_is_reached_once_and_no_way_is_a_circle(count: int, shape: str) -> None:
    ports = _ports(count, shape)
    ways, cut_off = tree("n1", ports)
    assert not cut_off
    read_from = {reader: way.node for way in ways.values() for reader in way.readers}
    assert set(read_from) == set(ports) - {"n1"}
    for name in set(read_from):
        seen = {name}
        while name != "n1":
            name = read_from[name]
            assert name not in seen
            seen.add(name)


class _Origin(http.server.BaseHTTPRequestHandler):
    """A registry's blobs, as much of one as the relay asks for; counts what it sends."""

    protocol_version = "HTTP/1.1"
    blobs: dict[str, bytes]
    sent: list[int]
    fail: list[int]
    lock: threading.Lock

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        """Nothing."""

    def _answer(self, *, body: bool) -> None:
        data = self.blobs.get(self.path)
        if data is None or (body and self.fail):
            self.send_response(self.fail.pop() if data is not None else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        found = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        piece = data[int(found[1]) : int(found[2]) + 1] if found else data
        with self.lock:
            self.sent[0] += len(piece) if body else 0
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(len(piece)))
        self.end_headers()
        if body:
            self.wfile.write(piece)


@contextmanager
def _origin(blobs: dict[str, bytes]) -> Iterator[tuple[int, type[_Origin]]]:
    handler = type("Handler", (_Origin,), {"blobs": blobs, "sent": [0], "fail": [], "lock": threading.Lock()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server.server_address[1], handler
    finally:
        server.shutdown()
        server.server_close()


def _get(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@contextmanager
def _chain(port: int, length: int) -> Iterator[list[tuple[Relay, int]]]:
    """Relays behind each other: (relay, its loopback port)."""
    made: list[tuple[Relay, int]] = []
    source, token = port, ""
    for _ in range(length):
        relay = Relay([[f"127.0.0.1:{source}"]], token, "secret")
        source, token = relay.listen("127.0.0.1", 0, open_to_all=False), "secret"
        made.append((relay, relay.listen("127.0.0.1", 0, open_to_all=True)))
    try:
        yield made
    finally:
        for relay, _ in reversed(made):
            relay.close()


DATA = bytes(range(256)) * ((CHUNK_BYTES * 3 + 5000) // 256)


def test_three_nodes_in_a_chain_read_at_once_and_the_head_sends_once() -> None:
    with _origin({BLOB: DATA}) as (port, origin), _chain(port, 3) as nodes:
        got: dict[int, bytes] = {}
        threads = [
            threading.Thread(target=lambda n=n, p=p: got.update({n: _get(p, BLOB)[1]}))
            for n, (_, p) in enumerate(nodes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [got[n] == DATA for n in range(3)] == [True] * 3
        assert origin.sent[0] == len(DATA)
        assert [relay.bytes_in >= len(DATA) for relay, _ in nodes] == [True] * 3


def test_first_pieces_that_are_asked_for_in_any_order_cost_one_transfer() -> None:
    """What a node behind does with two lanes a rail."""
    with _origin({BLOB: DATA}) as (port, origin), _chain(port, 1) as nodes:
        for begin in (2, 1, 3, 0):
            assert (
                _get(nodes[0][1], BLOB, {"Range": f"bytes={begin * CHUNK_BYTES}-"})[1]
                == DATA[begin * CHUNK_BYTES :]
            )
        assert origin.sent[0] == len(DATA)


@pytest.mark.parametrize("begin", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 77, len(DATA) - 1])
def test_a_reader_goes_on_where_it_stopped(begin: int) -> None:
    with _origin({BLOB: DATA}) as (port, _), _chain(port, 1) as nodes:
        status, data = _get(nodes[0][1], BLOB, {"Range": f"bytes={begin}-"})
        assert status == 206
        assert data == DATA[begin:]


def test_a_source_that_fails_for_a_moment_is_asked_again() -> None:
    with _origin({BLOB: DATA}) as (port, origin), _chain(port, 1) as nodes:
        origin.fail.extend([503, 500, 502])
        assert _get(nodes[0][1], BLOB) == (200, DATA)


def test_only_the_token_opens_the_fabric_listener_and_a_missing_blob_is_404() -> None:
    with _origin({BLOB: b"x"}) as (port, _), _chain(port, 1) as nodes:
        relay, loopback = nodes[0]
        fabric = relay.listen("127.0.0.1", 0, open_to_all=False)
        assert _get(fabric, BLOB)[0] == 403
        assert _get(fabric, BLOB, {"Authorization": "Bearer wrong"})[0] == 403
        assert _get(fabric, BLOB, {"Authorization": "Bearer secret"}) == (200, b"x")
        assert _get(loopback, BLOB.replace("1", "2"))[0] == 404
        assert _get(loopback, "/v2/../etc/passwd")[0] == 404
        assert _get(loopback, "/v2/")[0] == 200


def test_a_refused_token_ends_the_read_at_once() -> None:
    with _origin({BLOB: DATA}) as (port, _), _chain(port, 1) as nodes:
        wrong = Relay([[f"127.0.0.1:{nodes[0][0].listen('127.0.0.1', 0, open_to_all=False)}"]], "old", "x")
        begin = time.monotonic()
        assert _get(wrong.listen("127.0.0.1", 0, open_to_all=True), BLOB)[0] == 404
        assert time.monotonic() - begin < 5
        wrong.close()


def test_a_node_says_that_it_is_done() -> None:
    with _origin({}) as (port, _), _chain(port, 2) as nodes:
        assert nodes[1][0].tell(READY, "n2")
        assert nodes[0][0].ready == {"n2"}
        assert nodes[1][0].tell(DONE, "n2")
        assert nodes[0][0].finished == {"n2"}
        assert _get(nodes[0][1], DONE)[0] == 404


def test_a_rail_with_a_fraction_of_the_other_ones_rate_is_named() -> None:
    mib = 1 << 20
    (said,) = slow_rails({"10.1.0.1": (900 * mib, 40e6, ""), "10.2.0.1": (60 * mib, 4e6, "")})
    assert said.startswith(
        "the link to 10.2.0.1 is slow: 4.0 MB/s, another one to the same node has 40.0 MB/s"
    )
    assert slow_rails({"10.1.0.1": (500 * mib, 40e6, ""), "10.2.0.1": (300 * mib, 20e6, "")}) == []
    assert slow_rails({"10.1.0.1": (900 * mib, 40e6, "")}) == []
    assert slow_rails({"10.1.0.1": (3 * mib, 9e6, ""), "10.2.0.1": (0, 0.0, "")}) == [], "too little to judge"
    (said,) = slow_rails({"10.1.0.1": (900 * mib, 40e6, ""), "10.2.0.1": (0, 0.0, "timed out")})
    assert said.startswith("the link to 10.2.0.1 fails: timed out")


def test_a_lane_that_is_slow_is_tried_only_now_and_then() -> None:
    fast, slow = Lane("10.1.0.1", 1, ""), Lane("10.2.0.1", 1, "")
    assert not slow.holds_up([fast, slow]), "not known yet"
    fast.count(CHUNK_BYTES, 0.1)
    slow.count(CHUNK_BYTES, 1.0)
    slow.taken_s = time.monotonic()
    assert slow.holds_up([fast, slow])
    assert not fast.holds_up([fast, slow])
    slow.taken_s -= SLOW_TRY_S
    assert not slow.holds_up([fast, slow])
    fast.failing_since_s = time.monotonic() - 2 * FALLBACK_AFTER_S
    slow.taken_s = time.monotonic()
    assert not slow.holds_up([fast, slow]), "the fast one is given up"
