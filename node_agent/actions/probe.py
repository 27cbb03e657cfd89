"""Questions to the API from the head itself: the canary, and the smoke."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from node_agent.files import read_json, write_json
from node_agent.home import Home
from node_agent.wire import Refused, Report

ANSWER_MAX_BYTES = 4 << 20
CANARY_TOKENS = 4
WATCH_TOKENS = 2
"""Of the canaries that the watch asks for ever: as few as show that a token went through all ranks."""
CUT_OFF = "\N{REPLACEMENT CHARACTER}"
"""A text that ends within a character."""
PROMPT = "The quick brown fox jumps over"


class Api:
    """The OpenAI API on this node's loopback."""

    def __init__(self, port: int, model: str, timeout_s: float, key: str | None) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.model = model
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )

    def call(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body; an error status is a result, a broken connection is Refused."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, headers=self._headers)  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:  # noqa: S310
                return response.status, response.read(ANSWER_MAX_BYTES)
        except urllib.error.HTTPError as error:
            return error.code, error.read(ANSWER_MAX_BYTES)
        except (urllib.error.URLError, OSError) as error:
            raise Refused(f"the API at {self.base} does not answer {path}: {error}") from None

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        """Lines of a streamed answer as they come; Refused when it is none, or breaks."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, headers=self._headers)  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:  # noqa: S310
                while line := response.readline(ANSWER_MAX_BYTES):
                    yield line
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise Refused(f"the API at {self.base} does not stream {path}: {error}") from None

    def completion(self, prompt: str, tokens: int, **more: Any) -> str:
        """Greedy text; Refused when there is none."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        status, data = self.call("/v1/completions", body)
        if status != 200:
            raise Refused(f"/v1/completions answered {status}: {data[:300].decode('utf-8', 'replace')}")
        try:
            answer = json.loads(data)
            if answer["usage"]["completion_tokens"] < 1:
                raise Refused("the answer has no token")
            return str(answer["choices"][0]["text"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise Refused(
                f"/v1/completions answered something else: {data[:300].decode('utf-8', 'replace')}"
            ) from None


def api(home: Home, args: dict[str, Any]) -> Api:
    """The API that a request is about: its `port`, `model`, `timeout_s` and `key_file`."""
    key = None
    if args.get("key_file"):
        with open(args["key_file"], encoding="utf-8") as file:
            key = file.read().strip()
    return Api(int(args["port"]), args["model"], float(args["timeout_s"]), key)


def canary(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """One short generation through all ranks, written into the boot record."""
    begin = time.monotonic()
    asked = api(home, args)
    # twice: the second finds its prompt in the cache, as every later canary does
    texts = [asked.completion(PROMPT, CANARY_TOKENS) for _ in range(2)]
    _record(home, args, {"canary": True, "canary_texts": texts, "ready_unix_s": time.time()})
    return {"text": texts[-1], "seconds": time.monotonic() - begin}


def ask(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """A canary that changes nothing. `right`: it begins as one of the boot's did; None when those are not known."""
    begin = time.monotonic()
    text = api(home, args).completion(PROMPT, WATCH_TOKENS)
    record = read_json(home.boot_file(args["deployment"], int(args["generation"]))) or {}
    known = record.get("canary_texts")
    right = any(str(one).startswith(text.rstrip(CUT_OFF)) for one in known) if known else None
    return {"text": text, "right": right, "seconds": time.monotonic() - begin}


def smoke(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """The smoke, written into the boot record when everything passed."""
    results = check(home, args, report)["items"]
    failed = [item for item in results if not item["ok"]]
    if failed:
        raise Refused(
            f"smoke: {failed[0]['item']}: {failed[0]['detail']}",
            evidence=[f"{item['item']}: {item['detail']}" for item in failed],
        )
    _record(home, args, {"smoke": True})
    return {"items": results}


def check(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Every item of the smoke with its result; changes nothing."""
    asked = api(home, args)
    items = []
    for name, run in (
        ("models", _models),
        ("greedy twice is equal", _greedy_twice),
        ("chat", _chat),
        ("stream", _stream),
        ("prompt too long is refused", _too_long),
    ):
        begin = time.monotonic()
        try:
            detail, ok = run(asked), True
        except Refused as error:
            detail, ok = str(error), False
        items.append(
            {"item": name, "ok": ok, "detail": detail[:500], "seconds": round(time.monotonic() - begin, 3)}
        )
        report({"done": len(items), "total": 5, "unit": "items", "note": name})
    return {"items": items}


def _models(api: Api) -> str:
    status, data = api.call("/v1/models")
    names = [entry.get("id") for entry in json.loads(data).get("data", [])] if status == 200 else []
    if api.model not in names:
        raise Refused(f"/v1/models answered {status} with {names}, expected {api.model!r}")
    return f"serves {api.model}"


def _greedy_twice(api: Api) -> str:
    first, second = (api.completion(PROMPT, 12) for _ in range(2))
    if first != second:
        raise Refused(f"two greedy runs differ: {first!r} and {second!r}")
    return repr(first)[:120]


def _chat(api: Api) -> str:
    body = {
        "model": api.model,
        "messages": [{"role": "user", "content": "Say something."}],
        "max_tokens": 8,
        "temperature": 0,
    }
    status, data = api.call("/v1/chat/completions", body)
    if status != 200 or json.loads(data)["usage"]["completion_tokens"] < 1:
        raise Refused(f"/v1/chat/completions answered {status}: {data[:300].decode('utf-8', 'replace')}")
    return f"{json.loads(data)['usage']['completion_tokens']} tokens"


def _stream(api: Api) -> str:
    body = {"model": api.model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "stream": True}
    status, data = api.call("/v1/completions", body)
    chunks = [line for line in data.splitlines() if line.startswith(b"data: ")]
    if status != 200 or len(chunks) < 3 or chunks[-1] != b"data: [DONE]":
        raise Refused(f"the stream has {len(chunks)} chunks and ends with {chunks[-1:]!r}")
    return f"{len(chunks) - 1} chunks"


def _too_long(api: Api) -> str:
    status, data = api.call("/v1/models")
    length = next(
        (
            entry.get("max_model_len")
            for entry in json.loads(data).get("data", [])
            if entry.get("id") == api.model
        ),
        None,
    )
    if not isinstance(length, int) or length > 1 << 17:
        return "skipped: the context is too long to overfill in a smoke"
    body = {"model": api.model, "prompt": "word " * (length + 64), "max_tokens": 1}
    status, data = api.call("/v1/completions", body)
    if status != 400:
        raise Refused(f"a prompt over {length} tokens was answered with {status}, expected 400")
    return f"400 over {length} tokens"


def _record(home: Home, args: dict[str, Any], changes: dict[str, Any]) -> None:
    if "generation" not in args:
        return
    path = home.boot_file(args["deployment"], int(args["generation"]))
    known = read_json(path)
    if known is None:
        raise Refused(f"{path} is missing: this boot was not started by sparkyard")
    write_json(path, {**known, **changes})
