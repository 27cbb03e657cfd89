"""The engine's own metrics page, reduced to what the views show. Read on the node: its port is on loopback."""

from __future__ import annotations

import http.client
import math
import time
from typing import Any

PREFIX = "sglang:"
GAUGES = frozenset(
    {
        "num_running_reqs",
        "num_queue_reqs",
        "gen_throughput",
        "token_usage",
        "full_token_usage",
        "swa_token_usage",
        "spec_accept_length",
        "cache_hit_rate",
        "max_total_num_tokens",
        "num_used_tokens",
        "is_cuda_graph",
    }
)
COUNTERS = frozenset(
    {"prompt_tokens_total", "generation_tokens_total", "num_requests_total", "realtime_tokens_total"}
)
TTFT = "time_to_first_token_seconds_bucket"
TIMEOUT_S = 2.0
PAGE_MAX_BYTES = 4 << 20
"""A real page is 90 KB."""
Address = tuple[str, int]


class Page:
    """Reads the page at most every `every_s` seconds."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s = 0.0

    def read(self, where: Address | None) -> dict[str, Any] | None:
        """The reduced page; None when it is not time, or there is none. `{"error": text}` when it does not answer."""
        if where is None or time.monotonic() < self._next_s:
            return None
        self._next_s = time.monotonic() + self._every_s
        connection = http.client.HTTPConnection(*where, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/metrics/")
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                return {"error": f"the metrics page answers {answer.status}"}
            return parse(answer.read(PAGE_MAX_BYTES).decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException) as error:
            return {"error": f"no metrics page at {where[0]}:{where[1]}: {error}"[:300]}
        finally:
            connection.close()


def parse(text: str) -> dict[str, Any]:
    """Gauges (the largest over all label sets), counters (their sum) and the buckets of the time to first token."""
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    buckets: dict[float, float] = {}
    for row in text.splitlines():
        if not row.startswith(PREFIX):
            continue
        name, _, rest = row[len(PREFIX) :].partition("{")
        if name not in GAUGES and name not in COUNTERS and name != TTFT:
            continue
        labels, _, number = rest.rpartition("} ")
        value = _float(number)
        if value is None:
            continue
        if name in GAUGES:
            gauges[name] = max(value, gauges.get(name, value))
        elif name in COUNTERS:
            counters[name] = counters.get(name, 0.0) + value
        elif (bound := _bound(labels)) is not None:
            buckets[bound] = buckets.get(bound, 0.0) + value
    ordered = sorted(buckets.items())
    return {
        "gauges": gauges,
        "counters": counters,
        "ttft_bounds_s": [bound for bound, _ in ordered if math.isfinite(bound)],
        "ttft": [count for _, count in ordered],
    }


def _bound(labels: str) -> float | None:
    _, found, rest = labels.partition('le="')
    return _float(rest.partition('"')[0], infinite=True) if found else None


def _float(text: str, *, infinite: bool = False) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) or (math.isinf(value) and not infinite) else value
