"""Where load comes from: the same load generator as a process here, or on a node through its agent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from orchestrator.bench.loadgen.stream import Sample
from orchestrator.bench.parcel import BOOTSTRAP, parcel
from orchestrator.errors import SparkyardError
from orchestrator.remote.node import Ask, Message, Node, Progressed, Reply

LINE_LIMIT_BYTES = 2**28  # one sample with text and times of a million tokens stays below
STOP_GRACE_S = 5.0
MAX_STREAMS = 1024
GET_TIMEOUT_S = 20.0
LOAD_TIMEOUT_S = 4 * 3600.0  # of one plan on a node; a request's own bound is the plan's `timeout_s`


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Bodies that one stream sends one after the other, beginning `delay_s` after the others."""

    bodies: tuple[dict[str, Any], ...]
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What the generator sends: every stream at once, `timeout_s` without a byte ends a request."""

    url: str
    streams: tuple[StreamPlan, ...]
    timeout_s: float
    headers: dict[str, str] = field(default_factory=dict)

    def value(self) -> dict[str, Any]:
        """The plan as JSON.

        Raises:
            LoadFailed: more than `MAX_STREAMS` streams.
        """
        if len(self.streams) > MAX_STREAMS:
            raise LoadFailed(f"bench: {len(self.streams)} streams asked for, at most {MAX_STREAMS}")
        streams = [{"delay_s": stream.delay_s, "bodies": stream.bodies} for stream in self.streams]
        return {"url": self.url, "headers": self.headers, "timeout_s": self.timeout_s, "streams": streams}

    def line(self) -> bytes:
        """The plan as the generator reads it."""
        return json.dumps(self.value(), ensure_ascii=True).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What came of a plan; `cpu_s / wall_s` is the generator's own share of one core."""

    samples: tuple[Sample, ...]
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Fetched:
    """One page as the load source got it."""

    status: int
    text: str


OnTick = Callable[[list[int], float], None]
Messages = AsyncGenerator[dict[str, Any], None]


class LoadSource(Protocol):
    """A place that requests come from."""

    @property
    def place(self) -> str:
        """The machine or node, as it stands in the record."""
        ...

    async def run(self, plan: LoadPlan, on_tick: OnTick) -> LoadResult:
        """Runs one plan; cancelling stops it.

        Args:
            plan: what to send.
            on_tick: called about twice a second with events per stream and seconds since the start.

        Raises:
            LoadFailed: the generator ended or refused the plan.
        """
        ...

    async def get(self, url: str, headers: dict[str, str]) -> Fetched:
        """Fetches one page as this place reaches it.

        Raises:
            LoadFailed: nothing answers.
        """
        ...


class LoadFailed(SparkyardError):
    """The load generator could not do what it was asked."""


def get_plan(url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Asks the generator for one page."""
    return {"get": url, "headers": headers, "timeout_s": GET_TIMEOUT_S}


async def collect(place: str, messages: Messages, on_tick: OnTick) -> tuple[dict[str, Any], list[Sample]]:
    """The generator's messages up to the last: what `end` holds, and the samples.

    Raises:
        LoadFailed: it failed, ended early, or said something else.
    """
    samples: list[Sample] = []
    async with contextlib.aclosing(messages):
        async for message in messages:
            match message:
                case {"tick": seen, "at_s": at_s}:
                    on_tick(seen, at_s)
                case {"sample": dict() as sample}:
                    samples.append(Sample(**sample))
                case {"end": dict() as end}:
                    samples.sort(key=lambda one: (one.stream, one.index))
                    return end, samples
                case {"failed": reason}:
                    raise LoadFailed(f"bench: the load generator on {place} failed: {reason}")
                case _:
                    raise LoadFailed(f"bench: the load generator on {place} said {str(message)[:200]}")
    raise LoadFailed(f"bench: the load generator on {place} ended before its answer")


async def _run(place: str, messages: Messages, on_tick: OnTick) -> LoadResult:
    end, samples = await collect(place, messages, on_tick)
    return LoadResult(tuple(samples), end["wall_s"], end["cpu_s"])


async def _get(place: str, messages: Messages) -> Fetched:
    end, _samples = await collect(place, messages, lambda _seen, _at_s: None)
    return Fetched(end["status"], end["text"])


class LocalLoad:
    """A load generator as a process on this machine. Created by `local`."""

    def __init__(self, place: str, process: asyncio.subprocess.Process) -> None:
        self.place = place
        self._process = process

    async def run(self, plan: LoadPlan, on_tick: OnTick) -> LoadResult:
        """See `LoadSource`."""
        await self._write(plan.line())
        try:
            return await _run(self.place, self._messages(), on_tick)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, SparkyardError, OSError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await self._write(b"stop\n")
                    await _run(self.place, self._messages(), lambda _seen, _at_s: None)
            raise

    async def get(self, url: str, headers: dict[str, str]) -> Fetched:
        """See `LoadSource`."""
        await self._write(json.dumps(get_plan(url, headers)).encode() + b"\n")
        return await _get(self.place, self._messages())

    async def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101 - created with a pipe
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except OSError as problem:
            raise LoadFailed(f"bench: the load generator on {self.place} ended: {problem}") from None

    async def _messages(self) -> Messages:
        assert self._process.stdout is not None  # noqa: S101 - created with a pipe
        while line := await self._process.stdout.readline():
            try:
                yield json.loads(line)
            except ValueError:
                raise LoadFailed(f"bench: the load generator on {self.place} said {line[:200]!r}") from None

    async def close(self) -> None:
        """Ends the generator."""
        assert self._process.stdin is not None  # noqa: S101 - created with a pipe
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def begin(self) -> None:
        """Sends the archive."""
        await self._write(parcel())


@contextlib.asynccontextmanager
async def local(place: str = "controller") -> AsyncIterator[LoadSource]:
    """A load generator as a process of its own on this machine.

    A process of its own, so that drawing tables does not delay reading, and that its CPU time is its own. It
    has its own session: Ctrl-C reaches the controller only, which then stops it.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-c",
        BOOTSTRAP,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_LIMIT_BYTES,
        start_new_session=True,
    )
    load = LocalLoad(place, process)
    try:
        await load.begin()
        yield load
    finally:
        await load.close()


class NodeLoad:
    """A load generator on a node, started there by the agent for each plan."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def place(self) -> str:
        """The node's name."""
        return self._node.name

    async def run(self, plan: LoadPlan, on_tick: OnTick) -> LoadResult:
        """See `LoadSource`."""
        return await _run(self.place, self._ask(plan.value()), on_tick)

    async def get(self, url: str, headers: dict[str, str]) -> Fetched:
        """See `LoadSource`."""
        return await _get(self.place, self._ask(get_plan(url, headers)))

    async def _ask(self, plan: dict[str, Any]) -> Messages:
        args = {"program": BOOTSTRAP, "archive": base64.b64encode(parcel()).decode(), "plan": plan}
        answers = self._node.ask(Ask("load", args), timeout_s=LOAD_TIMEOUT_S)
        async with contextlib.aclosing(cast("AsyncGenerator[Message]", answers)) as messages:
            async for message in messages:
                match message:
                    case Progressed(data=data):
                        yield data
                    case Reply(value=value, failure=None):
                        yield value
                    case Reply(failure=failure) if failure is not None:
                        yield {"failed": failure.message}
