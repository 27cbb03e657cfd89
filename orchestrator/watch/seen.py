"""What the watch sees of a gang at one moment. Frozen values; where they come from is not known here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.model.facts import Desired, Phase


@dataclass(frozen=True, slots=True)
class RankSeen:
    """One rank of the desired generation, as its node's agent sees it."""

    rank: int
    guarded: bool
    """Its guard lives."""
    processes: int
    """Processes of the rank, the guard among them."""
    stopped: int
    """Of these, how many are stopped (state T): none of them can do anything."""
    phase: Phase
    ended: str = ""
    """Why it ended; empty while it lives."""
    status_age_s: float = 0.0
    """Since the guard last wrote its status."""
    processors: float | None = None
    """Processors that its processes kept busy since the last look; None at the first."""
    ended_by_guard: bool = False
    """Its guard ended it for a reason of its own, which is a cause and never the consequence of a peer's end."""
    last_log_unix_s: float = 0.0

    @property
    def dead(self) -> bool:
        """It cannot serve any more: gone, or without the guard that watches its memory."""
        return not self.guarded


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node that answered."""

    boot_id: str
    available_bytes: int
    floor_bytes: int | None = None
    """The guard ends the rank below this."""
    holder: str | None = None
    """Who holds the node's lease, if it is not the watch itself."""
    desired: Desired | None = None
    rank: RankSeen | None = None
    """This node's rank of the desired generation."""
    older: tuple[int, ...] = ()
    """Other generations of the deployment of which processes live here."""
    gpu_utilization: float | None = None
    gpu_power_w: float | None = None


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """Rank 0's own figures; they stand still when its scheduler does."""

    ready: bool
    running: int
    queued: int
    generated: float
    """Tokens generated since its start."""
    prefilled: float
    """Prompt tokens computed since its start, and tokens in the KV pool: both grow during one long prefill."""

    @property
    def work(self) -> tuple[float, float]:
        """Moves when, and only when, all ranks have done a step together."""
        return self.generated, self.prefilled


@dataclass(frozen=True, slots=True)
class CanarySeen:
    """The end of the canary that was asked last."""

    asked_s: float
    ended_s: float
    answered: bool
    right: bool = True
    """False: there was an answer, and not one of those given at the boot."""
    why: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.asked_s


@dataclass(frozen=True, slots=True)
class BootSeen:
    """One boot of the deployment; proven: canary and smoke went through."""

    generation: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything at one moment. `at_s` is monotonic."""

    at_s: float
    nodes: Mapping[str, NodeSeen]
    silent: Mapping[str, str] = field(default_factory=dict)
    """Why a node did not answer, by name."""
    engine: EngineSeen | None = None
    canary: CanarySeen | None = None
    boots: tuple[BootSeen, ...] = ()


def wanted(nodes: Mapping[str, NodeSeen], deployment: str) -> Desired | None:
    """What the answering nodes shall do for the deployment, by the most cautious record among them; None without one.

    A node that was away when somebody stopped the gang still says serving when it comes back, and a `stop` may have
    reached some nodes only: one that says stopped is enough. `serve` writes the record of every node.
    """
    caution = {"serving": 0, "maintenance": 1, "stopped": 2}
    records = [
        node.desired for node in nodes.values() if node.desired and node.desired.deployment == deployment
    ]
    first = max(records, key=lambda record: (caution[record.state], record.generation), default=None)
    newest = max((record.generation for record in records), default=0)
    if first is None or first.generation == newest:
        return first
    return first.model_copy(update={"generation": newest})


def failed_in_a_row(boots: tuple[BootSeen, ...]) -> int:
    """How many of the newest boots failed, one after the other."""
    row = 0
    for boot in sorted(boots, key=lambda entry: entry.generation, reverse=True):
        if boot.proven:
            break
        row += 1
    return row
