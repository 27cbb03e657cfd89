"""The launch gate on loopback: SGLang opens it, unauthenticated, on the address of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkyard_engine.drift import Symbol

SYMBOL = Symbol("sglang.srt.distributed.gated_launch.maybe_wait_for_gated_launch", ("host", "port"))
LOOPBACK = "127.0.0.1"


def around(value: Any) -> Callable[..., Any]:
    """The agent on the same node opens the gate; nobody else can."""
    del value

    def maybe_wait_for_gated_launch(original: Callable[..., Any], *, host: str, port: int | None) -> Any:
        del host
        return original(host=LOOPBACK, port=port)

    return maybe_wait_for_gated_launch
