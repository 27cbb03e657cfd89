"""How fast rank 0 answers, and whether it answers twice the same: three streamed greedy generations of one prompt."""

from __future__ import annotations

import json
import secrets
import statistics
import time
from dataclasses import dataclass
from typing import Any

from node_agent.actions import probe
from node_agent.home import Home
from node_agent.wire import Refused

TOKENS = 24
"""Enough for a median of steps, and over in 2 s at the 59-82 ms a step that three GB10 are reported to take."""
WORDS = "the yard keeps its rows on disk and counts them as the night goes by over the hill and far away " * 3


@dataclass
class Run:
    """One generation as its client saw it. Seconds."""

    first_token_s: float
    steps_s: list[float]
    """Between one chunk and the next; a chunk is a step of the gang, of one token or of those accepted."""
    text: str
    ids: list[int]


def read(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """First token of a prompt that no cache knows, median step, and the answers of the two runs that found it there.

    The runs that are compared both find the prompt in the cache: a prefill of another length rounds otherwise.
    """
    api = probe.api(home, args)
    prompt = f"{secrets.token_hex(4)} {WORDS}"
    fresh, first, second = (_run(api, prompt) for _ in range(3))
    steps_s = first.steps_s + second.steps_s
    return {
        "first_token_s": fresh.first_token_s,
        "step_s": statistics.median(steps_s) if steps_s else None,
        "steps": len(steps_s),
        "texts": [first.text, second.text],
        "ids": [first.ids, second.ids],
    }


def _run(api: probe.Api, prompt: str) -> Run:
    body = {
        "model": api.model,
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
    }
    begin_s = time.monotonic()
    seen_s: list[float] = []
    text, ids = "", []
    for line in api.stream("/v1/completions", body):
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        try:
            choices = json.loads(line[len(b"data: ") :])["choices"]
        except (ValueError, KeyError, TypeError):
            raise Refused(f"/v1/completions streamed something else: {line[:200]!r}") from None
        for choice in choices:
            text += str(choice.get("text") or "")
            ids += [int(number) for number in choice.get("token_ids") or ()]
            seen_s.append(time.monotonic())
    if not seen_s:
        raise Refused("the stream has no token")
    return Run(seen_s[0] - begin_s, [b - a for a, b in zip(seen_s, seen_s[1:])], text, ids)  # noqa: RUF007, B905 - 3.10
