"""A stand-in OpenAI server with a known rate, for tests of the load client. A program of its own.

Usage: python tests/standin.py --port 0 --rate 625 [--tokens-per-event 1] [--prefill-rate 20000] [--cached]
Prints `{"port": N}` once it listens. Streams are independent: each gets `rate` tokens a second. Tokens are
words of the prompt's own text, a prompt's token count is its number of four-character pieces: answers and
counts are known.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from typing import Any

CHARACTERS_PER_TOKEN = 4
CONTEXT_TOKENS = 200_000


def shared_prefix(one: str, other: str) -> int:
    if one.startswith(other):
        return len(other)
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self.rate = options.rate
        self.tokens_per_event = options.tokens_per_event
        self.prefill_rate = options.prefill_rate
        self.fail_above = options.fail_above
        self.seen_prefixes: set[str] = set()
        self.decode_passes = 0
        self.running = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                length = next(
                    (int(line.split(":")[1]) for line in head if line.lower().startswith("content-length:")),
                    0,
                )
                content = await reader.readexactly(length)
                await self.answer(head[0].split(" ")[1], content, writer)
        writer.close()

    async def answer(self, path: str, content: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            entry = {"id": "stand-in", "object": "model", "max_model_len": CONTEXT_TOKENS}
            self.whole(writer, json.dumps({"object": "list", "data": [entry]}))
        elif path.startswith("/metrics"):
            self.whole(writer, self.metrics(), "text/plain")
        elif path.startswith("/v1/"):
            body = json.loads(content)
            self.running += 1
            try:
                await self.generate(body, writer)
            finally:
                self.running -= 1
        else:
            self.whole(writer, "{}", status="404 Not Found")

    def whole(
        self, writer: asyncio.StreamWriter, text: str, kind: str = "application/json", status: str = "200 OK"
    ) -> None:
        data = text.encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)

    def metrics(self) -> str:
        return (
            f'sglang:cuda_graph_passes_total{{mode="decode_none"}} {self.decode_passes}\n'
            f'sglang:scheduler_stage_seconds_total{{category="run_batch"}} {self.decode_passes / self.rate}\n'
        )

    async def generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if self.fail_above and self.running > self.fail_above:
            self.whole(writer, '{"error": {"message": "too many"}}', status="503 Service Unavailable")
            return
        chat = "messages" in body
        prompt = "\n".join(message["content"] for message in body["messages"]) if chat else body["prompt"]
        prompt_tokens = max(1, len(prompt) // CHARACTERS_PER_TOKEN)
        cached = max((shared_prefix(prompt, seen) for seen in self.seen_prefixes), default=0)
        self.seen_prefixes.add(prompt)
        cached_tokens = cached // CHARACTERS_PER_TOKEN
        await asyncio.sleep((prompt_tokens - cached_tokens) / self.prefill_rate)
        words = (prompt.split() or ["word"])[:1000]
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        total, each = int(body["max_tokens"]), self.tokens_per_event
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0
        while sent < total:
            due = min(total, int((loop.time() - began) * self.rate) + 1)
            while sent < due:
                size = min(each, total - sent)
                text = "".join(f" {words[(sent + place) % len(words)]}" for place in range(size))
                sent += size
                self.event(writer, {"choices": [self.choice(text, chat, last=sent == total)]})
            self.decode_passes += 1
            await writer.drain()
            await asyncio.sleep(max(0.0, began + sent / self.rate - loop.time()))
        details = {"cached_tokens": cached_tokens}
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": total,
            "total_tokens": prompt_tokens + total,
            "prompt_tokens_details": details,
        }
        self.event(writer, {"choices": [], "usage": usage})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()

    def choice(self, text: str, chat: bool, *, last: bool) -> dict[str, Any]:
        delta = {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {"index": 0, **delta, "finish_reason": "length" if last else None}

    def event(self, writer: asyncio.StreamWriter, payload: dict[str, Any]) -> None:
        kind = "chat.completion.chunk"
        full = {"id": "stand-in-1", "object": kind, "created": 1, "model": "stand-in", **payload}
        data = b"data: " + json.dumps(full).encode() + b"\n\n"
        writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=625.0)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--prefill-rate", type=float, default=200_000.0)
    parser.add_argument("--fail-above", type=int, default=0)
    options = parser.parse_args()
    server = await asyncio.start_server(Server(options).serve, "127.0.0.1", options.port, limit=2**26)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
