"""Whether the other ends of the links answer, at the usual and at the full packet size."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from node_agent.facts.source import Source, TimedOutError

PING_TIMEOUT_S = 3.0
USUAL_BYTES = 56
JUMBO_BYTES = 8972  # 9000 less 20 bytes of IP and 8 of ICMP header
MAX_TARGETS = 256
PARALLEL = 16


def ping(source: Source, device: str, address: str, size: int) -> bool | None:
    """True when one of two packets that must not be fragmented comes back; None where ping is missing."""
    argv = (
        "ping",
        "-n",
        "-c",
        "2",
        "-i",
        "0.2",
        "-W",
        "1",
        "-M",
        "do",
        "-s",
        str(size),
        "-I",
        device,
        address,
    )
    try:
        ran = source.run(*argv, timeout_s=PING_TIMEOUT_S)
    except TimedOutError:
        return False
    return None if ran is None else ran.status == 0


def read(source: Source, targets: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """`targets` are (network device, peer's address); the controller names them, a node cannot know them."""

    def one(target: tuple[str, str]) -> dict[str, Any]:
        device, address = target
        return {
            "device": device,
            "address": address,
            "answers": ping(source, device, address, USUAL_BYTES),
            "answers_jumbo": ping(source, device, address, JUMBO_BYTES),
        }

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return list(pool.map(one, targets[:MAX_TARGETS]))
