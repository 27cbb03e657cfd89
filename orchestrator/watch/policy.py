"""What the watch is told, and what it remembers. Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CANARY_PACE_S = 120.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of the watch."""

    canary_pace_s: float = CANARY_PACE_S
    """Between canaries: 16 tokens a minute cost 200-250 ms of slow steps a minute, two tokens in 120 s do not show."""
    canary_s: float = 60.0
    """How long one canary may take when nothing else is in work."""
    recheck_s: float = 10.0
    """After a canary that failed, or while nothing moves."""
    settle_s: float = 4.0
    """From the first dead rank until its gang has followed it, so that the first one is named."""
    stopped_s: float = 12.0
    """A debugger stops a process for less."""
    hang_s: float = 60.0
    """No token through all ranks for so long after one was asked for."""
    hang_canaries: int = 2
    """And so many canaries failed: a single one may get lost by itself."""
    wrong_max: int = 3
    """Canaries in a row with another answer: one may differ by the rounding of another batch."""
    slow_factor: float = 8.0
    slow_min_s: float = 2.0
    """A canary that takes `slow_factor` times the usual and at least this is slow."""
    orphan_s: float = 20.0
    """A boot that nobody carries on (no lease is held) is taken over after this."""
    silent_s: float = 60.0
    """A node that is silent for so long: what the others know is kept as evidence, once. A flapping link is not."""
    back_off_s: float = 10.0
    back_off_max_s: float = 600.0
    """Before a second restart; doubled each time."""
    failed_boots_max: int = 2
    """Two boots that failed: a third would, too. A person has to look."""
    restarts_max: int = 5
    window_s: float = 3600.0
    """More restarts than that within the window, although each boot went well: also a matter for a person."""
    stable_s: float = 900.0
    """After this long in good health the back-off begins anew."""
    margin_bytes: int = 2 << 30
    """Less than this above the guard's floor is memory pressure."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is watched: a deployment of this profile, its ranks on these nodes (rank 0 first)."""

    deployment: str
    profile: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """What the watch remembers from one look to the next."""

    generation: int = -1
    work: tuple[float, float] | None = None
    life_s: float = 0.0
    """When a token last went through all ranks."""
    generated_s: float = float("-inf")
    """When the count of generated tokens last grew."""
    canary_asked_s: float | None = None
    """When the canary that is still out was asked."""
    canary_due_s: float = 0.0
    canary_seen_s: float = -1.0
    """End of the last canary that was taken into account."""
    failed_canaries: int = 0
    """Canaries that failed one after the other, without a token through all ranks in between."""
    failed_canary: str = ""
    """Why the last of them failed."""
    doubt_since_s: float = 0.0
    """When the first of them was asked."""
    wrong: int = 0
    slow: int = 0
    usual_s: float | None = None
    since: Mapping[str, float] = field(default_factory=dict)
    """Since when each suspicion holds without a break."""
    restarts: tuple[float, ...] = ()
    """When the gang was restarted, within the window and since the last long good health."""
    kept: bool = False
    """The evidence about the nodes that are silent now is kept."""
    not_before_s: float = 0.0
    good_since_s: float | None = None
