"""Where load comes from: a load generator at the end of a pipe, here or on another node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.bench.loadgen.stream import Sample
from orchestrator.bench.parcel import BOOTSTRAP, parcel
from orchestrator.errors import SparkyardError

LINE_LIMIT_BYTES = 2**28  # one sample with text and times of a million tokens stays below
STOP_GRACE_S = 5.0
MAX_STREAMS = 1024


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

    def line(self) -> bytes:
        """The plan as the generator reads it."""
        streams = [{"delay_s": stream.delay_s, "bodies": stream.bodies} for stream in self.streams]
        plan = {"url": self.url, "headers": self.headers, "timeout_s": self.timeout_s, "streams": streams}
        return json.dumps(plan, ensure_ascii=True).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What came of a plan; `cpu_s / wall_s` is the generator's own share of one core."""

    samples: tuple[Sample, ...]
    wall_s: float
    cpu_s: float


class Pipe(Protocol):
    """A process's standard input and output, local or over SSH."""

    async def write(self, data: bytes) -> None: ...
    async def readline(self) -> bytes: ...
    async def close(self) -> None: ...


class LoadSource:
    """A running load generator. Create it with `local` or, for a node, with `begin` over the node's pipe.

    Args:
        place: name of the node, as it stands in the record.
        pipe: standard input and output of `python3 -I -c BOOTSTRAP` at that place.
    """

    def __init__(self, place: str, pipe: Pipe) -> None:
        self.place = place
        self._pipe = pipe

    async def run(self, plan: LoadPlan, on_tick: Callable[[list[int], float], None]) -> LoadResult:
        """Runs one plan.

        Args:
            plan: what to send.
            on_tick: called about twice a second with events per stream and seconds since the start.

        Raises:
            SparkyardError: the generator ended or refused the plan.
            asyncio.CancelledError: after the generator was told to stop.
        """
        if len(plan.streams) > MAX_STREAMS:
            raise SparkyardError(f"bench: {len(plan.streams)} streams asked for, at most {MAX_STREAMS}")
        await self._pipe.write(plan.line())
        samples: list[Sample] = []
        try:
            return await self._collect(samples, on_tick)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, SparkyardError, OSError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await self._pipe.write(b"stop\n")
                    await self._collect(samples, lambda _seen, _at_s: None)
            raise

    async def _collect(
        self, samples: list[Sample], on_tick: Callable[[list[int], float], None]
    ) -> LoadResult:
        while line := await self._pipe.readline():
            try:
                message = json.loads(line)
            except ValueError:
                raise SparkyardError(
                    f"bench: the load generator on {self.place} said {line[:200]!r}"
                ) from None
            match message:
                case {"tick": seen, "at_s": at_s}:
                    on_tick(seen, at_s)
                case {"sample": sample}:
                    samples.append(Sample(**sample))
                case {"end": {"wall_s": wall_s, "cpu_s": cpu_s}}:
                    samples.sort(key=lambda sample: (sample.stream, sample.index))
                    return LoadResult(tuple(samples), wall_s, cpu_s)
                case {"failed": reason}:
                    raise SparkyardError(f"bench: the load generator on {self.place} failed: {reason}")
                case _:
                    raise SparkyardError(f"bench: the load generator on {self.place} said {line[:200]!r}")
        raise SparkyardError(f"bench: the load generator on {self.place} ended before its answer")

    async def close(self) -> None:
        """Ends the generator."""
        await self._pipe.close()


async def begin(place: str, pipe: Pipe) -> LoadSource:
    """A load source over a pipe to `BOOTSTRAP`: sends the archive."""
    await pipe.write(parcel())
    return LoadSource(place, pipe)


class _LocalPipe:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101 - created with a pipe
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def readline(self) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - created with a pipe
        return await self._process.stdout.readline()

    async def close(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - created with a pipe
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


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
    pipe = _LocalPipe(process)
    try:
        yield await begin(place, pipe)
    finally:
        await pipe.close()
