"""Whether this node forwards packets between its links; only a switchless ring of four needs it."""

from __future__ import annotations

from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source, UnreadableError
from node_agent.facts.text import lines

RULES = ("iptables", "-w", "2", "-S")
COMMAND_TIMEOUT_S = 4.0
MAX_RULES = 400


def parse_rules(text: str) -> dict[str, Any]:
    """`iptables -S`: policy of FORWARD, and the rules of the chain DOCKER-USER in order."""
    policy = None
    user: list[str] = []
    for item in lines(text):
        match item.split():
            case ["-P", "FORWARD", verdict]:
                policy = verdict[:20]
            case ["-A", "DOCKER-USER", *rest]:
                user.append(" ".join(rest)[:300])
            case _:
                pass
    return {"policy": policy, "docker_user": user[:MAX_RULES]}


def read(source: Source) -> dict[str, Any] | None:
    """None where iptables is not installed."""
    ran = source.run(*RULES, timeout_s=COMMAND_TIMEOUT_S, privileged=True)
    if ran is None:
        return None
    if ran.status != 0:
        raise UnreadableError(f"iptables: {ran.err.strip()[:200]}")
    return parse_rules(ran.out)


READER = Reader("forwarding", read, need="root (iptables -S)")
