"""The doctor's all-reduce, for real: three ranks over gloo where there is no GPU."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from node_agent.probes import collective

RANKS = 3


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_three_ranks_agree_and_say_how_fast_they_were() -> None:
    port = free_port()

    def rank(number: int) -> dict[str, Any]:
        env = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(number),
            "WORLD_SIZE": str(RANKS),
            "GLOO_SOCKET_IFNAME": "lo",
            "CUDA_VISIBLE_DEVICES": "",
        }
        return collective.run([sys.executable, "-c", collective.PROGRAM], env, None)

    with ThreadPoolExecutor(RANKS) as pool:
        found = list(pool.map(rank, range(RANKS)))
    assert [item["ok"] for item in found] == [True] * RANKS, found[0]["text"]
    assert {item["transport"] for item in found} == {"gloo"}
    assert min(item["gigabytes_per_s"] for item in found) > 0
