"""One streamed OpenAI request: bytes in, times and counts out."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

# Deltas that carry generated text: content, SGLang's and vLLM's two names for reasoning, tool calls,
# completions.
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "text")
ERROR_BODY_CHARACTERS = 300


@dataclass(slots=True)
class Sample:
    """What one request did. Times are seconds since the load began; `token_times_s` has one entry per event
    that carried text, so with speculative decoding it counts steps, not tokens."""

    stream: int
    index: int
    start_s: float
    token_times_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: str = ""
    text: str = ""
    error: str = ""


def parse_event(event: bytes) -> dict[str, Any] | None:
    """The JSON of one server-sent event, None for comments, blanks and `[DONE]`."""
    data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
    if not data or data == b"[DONE]":
        return None
    value = json.loads(data)
    return value if isinstance(value, dict) else None


def delta_text(payload: dict[str, Any]) -> str:
    """The generated text that one event carries, of every choice together."""
    parts = []
    for choice in payload.get("choices") or ():
        delta = choice.get("delta") or choice
        parts += [value for key in TEXT_KEYS if isinstance(value := delta.get(key), str)]
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            parts += [value for key in ("name", "arguments") if isinstance(value := function.get(key), str)]
    return "".join(parts)


def absorb(sample: Sample, arrivals: list[tuple[float, bytes]]) -> None:
    """Folds the events into `sample`. Runs after the stream has ended: parsing must not delay reading."""
    parts = []
    first_choice_s: float | None = None
    for at_s, event in arrivals:
        payload = parse_event(event)
        if payload is None:
            continue
        if error := payload.get("error"):
            sample.error = json.dumps(error)[:ERROR_BODY_CHARACTERS]
        if usage := payload.get("usage"):
            sample.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            sample.completion_tokens = int(usage.get("completion_tokens") or 0)
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            sample.cached_tokens = sample.cached_tokens if cached is None else int(cached)
        for choice in payload.get("choices") or ():
            first_choice_s = at_s if first_choice_s is None else first_choice_s
            sample.finish_reason = choice.get("finish_reason") or sample.finish_reason
        if text := delta_text(payload):
            parts.append(text)
            sample.token_times_s.append(at_s)
    if not sample.token_times_s and first_choice_s is not None:
        sample.token_times_s.append(
            first_choice_s
        )  # tokens that decode to no text: the event is still the first
    sample.text = "".join(parts)
    if not sample.error and not sample.completion_tokens:
        sample.error = "the stream ended without usage: the server ignores stream_options.include_usage"


async def send(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], sample: Sample, began: float, seen: list[int]
) -> None:
    """Sends one request and fills `sample`; `seen[sample.stream]` counts events for the live display.

    Never raises for what the server or the network does: `sample.error` says it.
    """
    arrivals: list[tuple[float, bytes]] = []
    sample.start_s = time.perf_counter() - began
    try:
        async with client.stream("POST", url, json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")[:ERROR_BODY_CHARACTERS]
                sample.error = f"HTTP {response.status_code}: {text}"
                return
            rest = b""
            async for chunk in response.aiter_raw():
                at_s = time.perf_counter() - began
                *events, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
                arrivals += [(at_s, event) for event in events]
                seen[sample.stream] += len(events)
            if rest.strip():
                arrivals.append((time.perf_counter() - began, rest))
    except Exception as problem:
        sample.error = f"{type(problem).__name__}: {problem}"
    finally:
        sample.end_s = time.perf_counter() - began
    if sample.error:
        return
    try:
        absorb(sample, arrivals)
    except (ValueError, TypeError, AttributeError) as problem:
        sample.error = f"unreadable event from the server: {problem}"
