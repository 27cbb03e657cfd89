"""What else used a node's processors between two looks: more than a little makes a measurement doubtful. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, StringConstraints

from orchestrator.model.frozen import Frozen

FOREIGN_CORES = 0.25
"""Of one core, over a look's interval. System services of an idle DGX OS or Debian take 0.01 to 0.05 together."""
NAMED_CORES = 0.05
NAMED_MAX = 3
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Program(Frozen):
    """A process; seconds of its children that have ended are in its own."""

    pid: int = Field(ge=1)
    started_ticks: int = Field(ge=0)
    name: Annotated[str, StringConstraints(max_length=64)]
    used_s: Seconds
    ours: bool


class Busy(Frozen):
    """The agent's answer to `busy`."""

    unix_s: Seconds
    monotonic_s: Seconds
    cpus: int = Field(ge=1)
    busy_s: Seconds
    programs: tuple[Program, ...] = Field(max_length=400)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Cores that others used on average; `names` are the largest of them, empty when none stands out."""

    cores: float
    names: str

    @property
    def text(self) -> str:
        """What a record says; empty below `FOREIGN_CORES`."""
        if self.cores < FOREIGN_CORES:
            return ""
        return f"{self.cores:.1f} cores busy with others" + (f": {self.names}" if self.names else "")


def foreign(
    before: Mapping[str, Busy], after: Mapping[str, Busy], own: frozenset[int], *, one_host: bool
) -> dict[str, Foreign]:
    """The load of others on each node that answered twice.

    Args:
        before, after: two looks, by node.
        own: pids of this program, where it runs on the same host.
        one_host: all nodes are this host, so that what one node calls its own is nobody's foreign load.
    """
    shared = own | {
        program.pid
        for look in (before, after)
        for busy in look.values()
        for program in busy.programs
        if program.ours
    }
    return {
        name: _between(before[name], after[name], shared if one_host else frozenset())
        for name in after
        if name in before and after[name].monotonic_s > before[name].monotonic_s
    }


def _between(before: Busy, after: Busy, own: frozenset[int]) -> Foreign:
    seconds = after.monotonic_s - before.monotonic_s

    def used(look: Busy) -> float:
        return sum(program.used_s for program in look.programs if program.ours or program.pid in own)

    ours_s = max(0.0, used(after) - used(before))
    cores = max(0.0, after.busy_s - before.busy_s - ours_s) / seconds
    earlier = {(program.pid, program.started_ticks): program.used_s for program in before.programs}
    by_name: dict[str, float] = {}
    for program in after.programs:
        if not program.ours and program.pid not in own:
            grown = program.used_s - earlier.get((program.pid, program.started_ticks), 0.0)
            by_name[program.name] = by_name.get(program.name, 0.0) + grown / seconds
    loudest = sorted(by_name.items(), key=lambda item: -item[1])[:NAMED_MAX]
    return Foreign(cores, ", ".join(f"{name} {share:.1f}" for name, share in loudest if share >= NAMED_CORES))
