"""Reads load plans from standard input, one JSON object a line, and answers each with lines on standard
output.

Plan: `{"url", "headers", "timeout_s", "streams": [{"delay_s": 0.0, "bodies": [...]}, ...]}`. Every stream
sends its bodies one after the other; all streams begin together, each after its own delay. Answers, one JSON
object a line: `{"tick": [events so far per stream], "at_s"}` while it runs, `{"sample": {...}}` per request,
and last `{"end": {"wall_s", "cpu_s"}}`, or `{"failed": reason}`. A line `stop` cancels the plan that runs:
its unfinished requests report an error.

A plan `{"get": url, "headers", "timeout_s"}` fetches one page: `{"end": {"status", "text"}}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict
from typing import Any

import httpx

from .stream import Sample, send

TICK_S = 0.5
STOP = b"stop"
CONNECT_TIMEOUT_S = 10.0


def write(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def one_stream(
    client: httpx.AsyncClient, plan: dict[str, Any], number: int, began: float, seen: list[int]
) -> None:
    stream = plan["streams"][number]
    await asyncio.sleep(stream["delay_s"])
    for index, body in enumerate(stream["bodies"]):
        sample = Sample(stream=number, index=index, start_s=0.0)
        try:
            await send(client, plan["url"], body, sample, began, seen)
        except asyncio.CancelledError:
            sample.error = "stopped"
            write({"sample": asdict(sample)})
            raise
        write({"sample": asdict(sample)})


async def tick(began: float, seen: list[int]) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        write({"tick": list(seen), "at_s": time.perf_counter() - began})


async def run(plan: dict[str, Any]) -> None:
    """Runs one plan to its end or its cancellation, then writes the `end` line."""
    seen = [0] * len(plan["streams"])
    timeout = httpx.Timeout(plan["timeout_s"], connect=CONNECT_TIMEOUT_S)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    # trust_env off: a proxy variable on a node must not carry the load elsewhere
    async with httpx.AsyncClient(
        timeout=timeout, limits=limits, headers=plan["headers"], trust_env=False
    ) as client:
        began, cpu_began = time.perf_counter(), time.process_time()
        ticker = asyncio.create_task(tick(began, seen))
        streams = [
            asyncio.create_task(one_stream(client, plan, number, began, seen))
            for number in range(len(plan["streams"]))
        ]
        try:
            await asyncio.gather(*streams)
        finally:
            for task in (ticker, *streams):
                task.cancel()
            await asyncio.gather(ticker, *streams, return_exceptions=True)
            end = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_began}
            write({"end": end})


async def get(plan: dict[str, Any]) -> None:
    """Fetches one page."""
    async with httpx.AsyncClient(
        timeout=plan["timeout_s"], headers=plan["headers"], trust_env=False, follow_redirects=True
    ) as client:
        response = await client.get(plan["get"])
        write({"end": {"status": response.status_code, "text": response.text}})


async def answer(line: bytes) -> None:
    """Does the plan in `line`; what goes wrong is said on standard output, so that nobody waits in vain."""
    try:
        plan = json.loads(line)
        await (get(plan) if "get" in plan else run(plan))
    except (ValueError, KeyError, TypeError, OSError, httpx.HTTPError) as problem:
        write({"failed": f"{type(problem).__name__}: {problem}"})


async def serve() -> None:
    """Plans from standard input until it closes; closing it also cancels the plan that runs."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**30)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    running: asyncio.Task[None] | None = None
    while line := (await reader.readline()).strip():
        if running is not None and not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if line != STOP:
            running = asyncio.create_task(answer(line))
    if running is not None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(serve())
