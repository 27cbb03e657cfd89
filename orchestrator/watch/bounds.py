"""How long the watch takes, at worst, from a fault to its verdict: what docs/watch.md states and tests hold. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.watch.policy import Policy


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds from a fault to its verdict."""

    dead_s: float
    """A rank, its guard, or all of its processes are gone: also by the memory floor."""
    stopped_s: float
    """A process of a rank is stopped."""
    hung_s: float
    """No token goes through, and no process shows why."""
    wrong_s: float
    """Tokens go through, and they are wrong."""
    silent_s: float
    """A node does not answer."""
    orphan_s: float
    """Nobody carries a boot on."""


def bounds(policy: Policy, look_s: float) -> Bounds:
    """From the policy and the longest time between two looks (the pace, and what a look takes)."""
    # what holds for a time is first seen one look late, and found to have held one look late
    seen_twice_s = 2 * look_s
    canaries_s = policy.hang_canaries * policy.canary_s + (policy.hang_canaries - 1) * policy.recheck_s
    return Bounds(
        dead_s=policy.settle_s + seen_twice_s,
        stopped_s=policy.stopped_s + seen_twice_s,
        hung_s=policy.canary_pace_s + max(policy.hang_s, canaries_s) + look_s * (policy.hang_canaries + 1),
        wrong_s=policy.canary_pace_s
        + policy.wrong_max * policy.canary_s
        + (policy.wrong_max - 1) * policy.recheck_s
        + look_s * (policy.wrong_max + 1),
        silent_s=look_s,
        orphan_s=policy.orphan_s + seen_twice_s,
    )
