"""The agent's protocol over any pair of byte streams: start it, ask it several things at once, notice its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Protocol

from orchestrator.errors import AskError
from orchestrator.model.plain import rows
from orchestrator.model.step import Failure
from orchestrator.remote.bundle import agent
from orchestrator.remote.lines import Lines
from orchestrator.remote.node import Ask, Message, Progressed, Reply

QUEUE_MAX = 4096
"""Messages of one request that wait to be read; more means that nobody reads, and the channel is given up."""
WAITING_MAX_BYTES = 64 << 20
"""Of all messages that wait to be read, as they came."""


class Pipe(Protocol):
    """A running remote command."""

    async def read(self, limit: int) -> bytes:
        """Some bytes of its standard output; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """To its standard input."""
        ...

    async def close(self) -> None:
        """End it."""
        ...

    async def last_words(self) -> str:
        """What it wrote to standard error, shortened."""
        ...


class Channel:
    """One agent. Made by `open_channel`."""

    def __init__(self, node: str, pipe: Pipe) -> None:
        self._node = node
        self._pipe = pipe
        self._lines = Lines(pipe.read, self._words)
        self._next_id = 0
        self._waiting: dict[int, asyncio.Queue[tuple[int, dict[str, Any]]]] = {}
        self._waiting_bytes = 0
        self._reader: asyncio.Task[None] | None = None
        self._end: Failure | None = None

    @property
    def ended(self) -> bool:
        """True when it cannot be asked any more."""
        return self._end is not None

    async def start(self, hello: dict[str, Any]) -> None:
        """Bring the agent to the node if it is not there, and start it. AskError when that fails."""
        digest, data = agent()
        await self._pipe.write(_line({**hello, "sha256": digest, "size_bytes": len(data)}))
        word = (await self._lines.message()).get("boot")
        if word == "need":
            await self._pipe.write(data)
        elif word != "have":
            raise AskError("failed", f"the agent cannot be put on the node: {word}")
        greeting = await self._lines.message()
        said = greeting.get("hello")
        if not isinstance(said, dict) or said.get("agent") != digest:
            raise AskError("failed", f"the agent does not start: {str(greeting.get('boot', greeting))[:500]}")
        self._reader = asyncio.create_task(self._read())

    async def _words(self) -> str:
        return rows(await self._pipe.last_words())

    async def _read(self) -> None:
        try:
            while True:
                message = await self._lines.message()
                number = message.get("id")
                queue = self._waiting.get(number) if isinstance(number, int) else None
                if queue is not None:
                    queue.put_nowait((self._lines.size_bytes, message))
                    self._waiting_bytes += self._lines.size_bytes
                    if self._waiting_bytes > WAITING_MAX_BYTES:
                        raise AskError(
                            "protocol", f"over {WAITING_MAX_BYTES:,} bytes of messages wait to be read"
                        )
        except AskError as error:
            self._fail(error.kind, str(error))
        except asyncio.QueueFull:
            self._fail("protocol", f"over {QUEUE_MAX} messages of one request wait to be read")
        except (OSError, EOFError) as error:
            self._fail("unreachable", str(error))
        await self._pipe.close()

    def _fail(self, kind: Any, message: str) -> None:
        self._end = Failure(self._node, kind, message, "check the node and its SSH server")
        for queue in self._waiting.values():
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait((0, {"end": True}))

    async def ask(self, request: Ask) -> AsyncGenerator[Message]:
        """As `Node.ask`, without the bound. Leaving the iteration early cancels the request on the node."""
        self._next_id += 1
        number = self._next_id
        queue = self._waiting[number] = asyncio.Queue(QUEUE_MAX)
        done = False
        try:
            if self._end is None:
                body = {"id": number, "ask": request.what, "args": request.args, "fence": request.fence}
                await self._pipe.write(_line(body))
            while True:
                if self._end is not None and queue.empty():
                    done = True
                    yield Reply({}, self._end)
                    return
                size_bytes, message = await queue.get()
                self._waiting_bytes -= size_bytes
                match message:
                    case {"progress": dict() as data}:
                        yield Progressed(data)
                    case {"ok": True, "value": dict() as value}:
                        done = True
                        yield Reply(value)
                        return
                    case {"ok": False, "error": dict() as error}:
                        done = True
                        yield Reply({}, self._failure(error))
                        return
                    case {"end": True}:
                        continue
                    case _:
                        done = True
                        yield Reply(
                            {}, Failure(self._node, "protocol", f"not an answer: {str(message)[:200]}")
                        )
                        return
        finally:
            del self._waiting[number]
            while not queue.empty():
                self._waiting_bytes -= queue.get_nowait()[0]
            if not done and self._end is None:
                await self._pipe.write(_line({"id": 0, "ask": "cancel", "target": number}))

    def _failure(self, error: dict[str, Any]) -> Failure:
        known = {"refused", "failed", "timeout", "protocol", "unreachable"}
        kind: Any = error["kind"] if str(error.get("kind")) in known else "failed"
        lines = error.get("evidence")
        evidence = tuple(str(line)[:2000] for line in (lines if isinstance(lines, list) else [])[:50])
        return Failure(self._node, kind, str(error.get("message", ""))[:4000], "", evidence)

    async def close(self) -> None:
        """End the agent's channel; the agent ends with it."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(
                self._reader, return_exceptions=True
            )  # two readers of one stream are an error
        self._fail("unreachable", "closed")
        await self._pipe.close()


class AgentNode:
    """A node behind a pipe that is opened when first needed and again after it broke."""

    def __init__(self, name: str, hello: dict[str, Any], dial: Callable[[], Any]) -> None:
        self.name = name
        self._hello = {**hello, "node": name}
        self._dial = dial
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()

    async def _open(self) -> Channel:
        async with self._lock:
            if self._channel is None or self._channel.ended:
                channel = Channel(self.name, await self._dial())
                try:
                    await channel.start(self._hello)
                except BaseException:
                    await channel.close()
                    raise
                self._channel = channel
            return self._channel

    async def ask(self, request: Ask, *, timeout_s: float) -> AsyncIterator[Message]:
        """See `Node.ask`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        stream: AsyncGenerator[Message] | None = None
        try:
            async with asyncio.timeout_at(deadline):
                stream = (await self._open()).ask(request)
            while True:
                # The bound is on us, not on the reader: nothing is yielded inside the timeout.
                async with asyncio.timeout_at(deadline):
                    message = await anext(stream)
                yield message
        except StopAsyncIteration:
            return
        except TimeoutError:
            text = f"{request.what}: no answer within {timeout_s:.0f} s"
            yield Reply(
                {}, Failure(self.name, "timeout", text, "the node is slow or hangs: sparkyard doctor")
            )
        except AskError as error:
            kind: Any = error.kind
            yield Reply({}, Failure(self.name, kind, str(error), "", error.evidence))
        except OSError as error:
            yield Reply({}, Failure(self.name, "unreachable", str(error), "check address, port and network"))
        finally:
            if stream is not None:
                await stream.aclose()

    async def close(self) -> None:
        """See `Node.close`."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
