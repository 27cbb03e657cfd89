"""One object on its way to this node: fetched once, in pieces over all lanes, and read by everybody who wants it now.

The node's own engine and the nodes behind it read the same pieces, so a relayed layer crosses each link once and is
never written to disk on the way. A reader that falls out of the window starts a fetch of its own: it never slows the
others down.
"""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import dataclass, field

CHUNK_BYTES = 4 << 20
AHEAD_CHUNKS = 8
"""Fetched ahead of the fastest reader: enough to fill a 25 GB/s link for its round trips, per object 32 MiB."""
BUDGET_MAX_BYTES = 4 << 30
BUDGET_SHARE = 16
"""Kept behind the fastest readers, for those who are a little later: a sixteenth of MemAvailable, 4 GiB at most.
At 1 GB/s that lets the nodes of a chain be 4 s apart; a rank is not running yet while images travel."""
LINGER_S = 60.0
"""A flight without a reader ends after this."""
SOCKET_TIMEOUT_S = 15.0
PATIENCE_S = 120.0
"""A lane that brings nothing for this long is given up: a cable is back, a node is not."""
FALLBACK_AFTER_S = 10.0
"""A neighbour's relay starts a moment after ours; turning away from it makes the head send the image twice."""
PAUSE_MAX_S = 4.0
SLOW_SHARE = 0.25
"""A lane with less than this share of another one's rate would hold up every reader: pieces are read in order."""
SLOW_TRY_S = 10.0
"""It gets one piece in so long, to see whether it is still slow."""


class LaneBroken(Exception):
    """A lane brought nothing; the text says why."""


class NotThere(Exception):
    """The source does not have the object, or does not give it to us: asking again cannot help."""


@dataclass
class Lane:
    """One way to one source. Lanes of a higher ``rank`` are used only while all of a lower rank are given up."""

    host: str
    port: int
    token: str
    rank: int = 0
    failing_since_s: float | None = None
    bytes_in: int = 0
    bytes_per_s: float = 0.0
    """Of its latest pieces, smoothed; 0 until the first has come."""
    taken_s: float = 0.0
    """When it took its latest piece."""
    fault: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def given_up(self) -> bool:
        """Whether it fails for so long that another source is worth its cost."""
        return self.failing_since_s is not None and time.monotonic() - self.failing_since_s > FALLBACK_AFTER_S

    def connect(self) -> http.client.HTTPConnection:
        """A new connection; it is opened by its first request."""
        return http.client.HTTPConnection(self.host, self.port, timeout=SOCKET_TIMEOUT_S)

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def count(self, size: int, seconds: float = 0.0) -> None:
        """Bytes that came this way, from any thread; ``seconds`` for a piece whose rate counts."""
        with self.lock:
            self.bytes_in += size
            if seconds > 0:
                rate = size / seconds
                self.bytes_per_s = (self.bytes_per_s + rate) / 2 if self.bytes_per_s else rate

    def holds_up(self, others: list[Lane]) -> bool:
        """Whether it is so much slower than another lane that it shall be tried only now and then."""
        best = max((o.bytes_per_s for o in others if o.rank == self.rank and not o.given_up), default=0.0)
        slow = 0 < self.bytes_per_s < best * SLOW_SHARE
        return slow and time.monotonic() - self.taken_s < SLOW_TRY_S


class Flight:
    """Chunks of one object from chunk ``first`` on."""

    def __init__(self, path: str, size: int, first: int, lanes: list[Lane]) -> None:
        self.path = path
        self.size = size
        self.behind_chunks = 0
        self.last_read_s = time.monotonic()
        self._lanes = lanes
        self._end = -(-size // CHUNK_BYTES)
        self._change = threading.Condition()
        self._chunks: dict[int, bytes] = {}
        self._pending: set[int] = set()
        self._again: list[int] = []
        self._next = first
        self._lead = first
        self._alive = len(lanes)
        self._closed = False
        self.fault = ""
        for lane in lanes:
            threading.Thread(target=self._run, args=(lane,), daemon=True).start()

    def can_serve(self, index: int) -> bool:
        """Whether chunk ``index`` is here or will come without another fetch."""
        with self._change:
            if self._closed or self.fault:
                return False
            # a node behind this one asks for pieces ahead of what it needs: they are not far, and will come
            soon = self._next <= index <= self._next + 2 * AHEAD_CHUNKS
            return soon or index in self._chunks or index in self._pending

    def read(self, index: int) -> bytes | None:
        """Chunk ``index``; None when it is gone from the window. LaneBroken when no lane brings it."""
        with self._change:
            self.last_read_s = time.monotonic()
            self._lead = max(self._lead, index)
            for old in [i for i in self._chunks if i < self._lead - self.behind_chunks]:
                del self._chunks[old]
            self._change.notify_all()
            while index not in self._chunks:
                if self.fault:
                    raise LaneBroken(self.fault)
                if self._closed or (index < self._next and index not in self._pending):
                    return None
                self._change.wait(1.0)
                self.last_read_s = time.monotonic()
            return self._chunks[index]

    def close(self) -> None:
        """Forget everything; the lanes' threads end."""
        with self._change:
            self._closed = True
            self._chunks.clear()
            self._change.notify_all()

    @property
    def is_large(self) -> bool:
        """Whether it takes a share of what may be kept; a small one fits into any."""
        return self._end > AHEAD_CHUNKS

    @property
    def idle_s(self) -> float:
        """Seconds since somebody read."""
        return time.monotonic() - self.last_read_s

    def _run(self, lane: Lane) -> None:
        connection = lane.connect()
        pause_s = 0.1
        while (index := self._take(lane)) is not None:
            try:
                data = self._fetch(connection, lane, index)
            except (LaneBroken, NotThere) as error:
                connection.close()
                now = time.monotonic()
                since = lane.failing_since_s = lane.failing_since_s or now
                lane.fault = str(error)
                gone = isinstance(error, NotThere) or now - since > PATIENCE_S
                self._give_back(index, str(error) if gone else "")
                if gone:
                    return
                time.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, pause_s * 2)
                continue
            lane.failing_since_s, pause_s = None, 0.1
            with self._change:
                self._pending.discard(index)
                self._chunks[index] = data
                self._change.notify_all()
        connection.close()

    def _take(self, lane: Lane) -> int | None:
        """The next chunk that this lane shall bring; None at the end."""
        with self._change:
            while not self._closed and not self.fault:
                waits = any(other.rank < lane.rank and not other.given_up for other in self._lanes)
                if not waits and not lane.holds_up(self._lanes):
                    if self._again:
                        return self._again.pop(0)
                    if self._next < self._end and self._next <= self._lead + AHEAD_CHUNKS:
                        lane.taken_s = time.monotonic()
                        self._next += 1
                        self._pending.add(self._next - 1)
                        return self._next - 1
                if self._next >= self._end and not self._pending:
                    return None
                self._change.wait(0.5)
            return None

    def _give_back(self, index: int, final: str) -> None:
        with self._change:
            self._again.append(index)
            self._again.sort()
            if final:
                self._alive -= 1
                if self._alive == 0:
                    self.fault = final
            self._change.notify_all()

    def _fetch(self, connection: http.client.HTTPConnection, lane: Lane, index: int) -> bytes:
        begin = index * CHUNK_BYTES
        end = min(self.size, begin + CHUNK_BYTES)
        headers = {**lane.headers(), "Range": f"bytes={begin}-{end - 1}"}
        where = f"http://{lane.host}:{lane.port}"
        try:
            connection.request("GET", self.path, headers=headers)
            response = connection.getresponse()
            begin_s = time.monotonic()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise LaneBroken(f"{where}: {error or type(error).__name__}") from None
        if 400 <= response.status < 500:
            raise NotThere(f"{where} answered {response.status} to {self.path}")
        if response.status != 206 or len(data) != end - begin:
            raise LaneBroken(
                f"{where} answered {response.status} with {len(data)} bytes, expected {end - begin}"
            )
        whole = len(data) == CHUNK_BYTES  # the rate of a short last piece says nothing
        lane.count(len(data), time.monotonic() - begin_s if whole else 0.0)
        return data


class Flights:
    """All objects on their way; a bounded number of them."""

    MAX = 16

    def __init__(self, lanes: list[Lane], available_bytes: int) -> None:
        self._lanes = lanes
        self._budget_chunks = min(BUDGET_MAX_BYTES, available_bytes // BUDGET_SHARE) // CHUNK_BYTES
        self._lock = threading.Lock()
        self._flying: list[Flight] = []

    def chunk(self, path: str, size: int, index: int) -> bytes:
        """One chunk of one object. LaneBroken when no lane brings it."""
        while True:
            data = self._flight(path, size, index).read(index)
            if data is not None:
                return data

    def _flight(self, path: str, size: int, index: int) -> Flight:
        with self._lock:
            for flight in self._flying:
                if flight.path == path and flight.can_serve(index):
                    return flight
            self._sweep(self.MAX - 1)
            # A node behind asks for its first pieces side by side, and they come in any order: whichever is first opens
            # the object at its beginning, or another flight would be needed for the pieces before it.
            made = Flight(path, size, 0 if index <= AHEAD_CHUNKS else index, self._lanes)
            self._flying.append(made)
            large = sum(flight.is_large for flight in self._flying)
            for flight in self._flying:
                flight.behind_chunks = self._budget_chunks // max(1, large)
            return made

    def _sweep(self, room: int) -> None:
        """Close what nobody reads; when there are still too many, the longest idle ones."""
        by_idle = sorted(self._flying, key=lambda flight: -flight.idle_s)
        for flight in by_idle:
            if flight.idle_s > LINGER_S or flight.fault or len(self._flying) > room:
                flight.close()
                self._flying.remove(flight)

    def close(self) -> None:
        """End all."""
        with self._lock:
            for flight in self._flying:
                flight.close()
            self._flying.clear()
