"""`enable_thinking` in a chat request's template arguments: what clients of other servers send for `thinking`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkyard_engine.drift import Symbol

SYMBOL = Symbol(
    "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._convert_to_internal_request",
    ("self", "request", "raw_request"),
)
ALIAS, NAME = "enable_thinking", "thinking"


def around(value: Any) -> Callable[..., Any]:
    """Adds the name that SGLang reads; a request that sends both keeps its own."""
    del value

    def convert(original: Callable[..., Any], self: Any, request: Any, raw_request: Any = None) -> Any:
        given = request.chat_template_kwargs or {}
        if ALIAS in given and NAME not in given:
            request.chat_template_kwargs = {**given, NAME: bool(given[ALIAS])}
        return original(self, request, raw_request)

    return convert
