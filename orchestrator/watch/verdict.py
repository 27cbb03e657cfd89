"""What a gang is found to be. Pure.

Tensor parallel is synchronous: one dead, stopped or slow rank stops all, and neither a worker's `/health` nor the
engine's watchdog shows it. What counts as life is a token that went through every rank: work counters of rank 0 that
move, or a canary that is answered. A rank's processes say which rank it is that stopped the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.watch.policy import Memory, Policy, Target
from orchestrator.watch.seen import NodeSeen, RankSeen, Seen

STILL_PROCESSORS = 0.05
SPINNING_PROCESSORS = 0.5
WAITING_UTILIZATION = 90.0
WAITING_POWER_W = 25.0
"""A GB10 that waits in NCCL shows 96 % utilization at 18-23 W; one that computes draws more or shows less."""


class State(StrEnum):
    """What the gang is found to be."""

    STOPPED = "stopped"
    MAINTENANCE = "maintenance"
    FOREIGN = "another profile"
    ACTING = "somebody acts"
    BOOTING = "booting"
    SUSPECT = "suspected"
    IDLE = "idle"
    BUSY = "busy"
    PREFILL = "long prefill"
    SLOW = "slow"
    PRESSURE = "memory pressure"
    UNREACHABLE = "node unreachable"
    HUNG = "hung"
    DEAD = "dead rank"
    DOWN = "no gang"
    GARBAGE = "wrong answers"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What it is, which nodes it is about, and why, in words that name the measurement."""

    state: State
    nodes: tuple[str, ...] = ()
    why: str = ""
    aspect: str = ""
    """What was found out about it since: another one is news, another number of seconds in `why` is not."""


def judge(
    policy: Policy, target: Target, memory: Memory, seen: Seen, generation: int
) -> tuple[Memory, Verdict]:
    """The first of these that holds. Each suspicion has to hold for its time before it is said."""
    at_s = seen.at_s
    ranks = {
        name: seen.nodes[name].rank for name in target.nodes if name in seen.nodes and seen.nodes[name].rank
    }
    missing = [name for name in target.nodes if name in seen.nodes and seen.nodes[name].rank is None]
    dead = [name for name, rank in ranks.items() if rank and rank.dead]
    proven = any(boot.generation == generation and boot.proven for boot in seen.boots)
    stopped = [name for name, rank in ranks.items() if rank and rank.stopped and not rank.dead]
    since = {
        key: memory.since.get(key, at_s)
        for key, holds in {
            "dead": bool(dead or missing),
            "stopped": bool(stopped),
            "orphan": not proven,
            **{f"silent {name}": True for name in seen.silent},
        }.items()
        if holds
    }
    if since != memory.since:
        memory = replace(memory, since=since)

    def holds_for(key: str) -> float:
        return at_s - since[key] if key in since else -1.0

    if seen.silent:
        return memory, _unreachable(target, memory, seen, since)
    if not ranks:
        why = f"no rank of generation {generation} is there; it shall serve"
        return memory, Verdict(State.DOWN if holds_for("dead") >= policy.settle_s else State.SUSPECT, (), why)
    if dead or missing:
        why = _why_dead(seen, ranks, missing)
        settled = holds_for("dead") >= policy.settle_s
        return memory, Verdict(State.DEAD if settled else State.SUSPECT, tuple(dead or missing), why)
    if stopped:
        why = "; ".join(
            f"{name}: {rank.stopped} of {rank.processes} processes of rank {rank.rank} are stopped"
            for name, rank in ranks.items()
            if rank and rank.stopped
        )
        state = State.HUNG if holds_for("stopped") >= policy.stopped_s else State.SUSPECT
        return memory, Verdict(state, tuple(stopped), why)
    if not proven:
        return memory, Verdict(
            State.BOOTING, (), f"generation {generation} is up, its smoke is still to come"
        )
    return memory, _alive(policy, memory, seen, {name: rank for name, rank in ranks.items() if rank})


def _unreachable(target: Target, memory: Memory, seen: Seen, since: Mapping[str, float]) -> Verdict:
    names = tuple(sorted(seen.silent))
    gone_s = min(since[f"silent {name}"] for name in names)
    what = "; ".join(f"{name}: {seen.silent[name]}" for name in names)
    if memory.life_s > gone_s:
        aspect, ago_s = "network", seen.at_s - memory.life_s
        found = (
            f"its rank works: a token went through all ranks {ago_s:.0f} s ago (network or SSH, not the host)"
        )
    elif target.nodes[0] in names:
        aspect, found = "head", "it is the head: whether the ranks work cannot be asked"
    elif memory.canary_seen_s > gone_s:
        aspect = "host"
        found = "no token went through all ranks since: the host or its links. A restart needs every node"
    else:
        aspect, found = "unknown", "whether its rank works is asked now"
    return Verdict(State.UNREACHABLE, names, f"{what}; {found}", aspect)


def _why_dead(seen: Seen, ranks: Mapping[str, RankSeen | None], missing: list[str]) -> str:
    """The likely cause first: an end that a guard decided, then the rank that fell silent first."""
    gone = sorted(
        ((rank, name) for name, rank in ranks.items() if rank and rank.dead),
        key=lambda entry: (not entry[0].ended_by_guard, entry[0].last_log_unix_s, entry[0].rank),
    )
    words = [f"{name}: rank {rank.rank} ended: {rank.ended or 'its guard is gone'}" for rank, name in gone]
    said = "; ".join([*words, *(f"{name}: its rank is not there" for name in missing)])
    if gone and gone[0][0].ended.startswith("memory_floor"):
        hosts = {node.boot_id for node in seen.nodes.values()}
        return f"memory floor on {'the shared host' if len(hosts) < len(seen.nodes) else gone[0][1]}: {said}"
    return said


def _alive(policy: Policy, memory: Memory, seen: Seen, ranks: Mapping[str, RankSeen]) -> Verdict:
    """All ranks are there: do they work?"""
    if memory.wrong >= policy.wrong_max:
        why = f"{memory.wrong} canaries in a row were answered with something else than at the boot"
        return Verdict(State.GARBAGE, (), why)
    quiet_s = seen.at_s - memory.life_s
    doubt_s = seen.at_s - memory.doubt_since_s
    if memory.failed_canaries >= policy.hang_canaries and doubt_s >= policy.hang_s:
        names, whose = _culprit(ranks)
        tried = f"{memory.failed_canaries} canaries failed, the last: {memory.failed_canary}"
        return Verdict(
            State.HUNG, names, f"no token through all ranks for {quiet_s:.0f} s ({tried}); {whose}"
        )
    low = {
        name: node
        for name, node in seen.nodes.items()
        if node.floor_bytes is not None and node.available_bytes < node.floor_bytes + policy.margin_bytes
    }
    if low:
        why = "; ".join(
            f"{name}: {node.available_bytes / 2**30:.1f} GiB available, the guard ends the rank below "
            f"{(node.floor_bytes or 0) / 2**30:.1f}"
            for name, node in low.items()
        )
        return Verdict(State.PRESSURE, tuple(low), why)
    if memory.slow >= 2:
        names, whose = _straggler(seen.nodes)
        return Verdict(
            State.SLOW, names, f"canaries take over {policy.slow_factor:.0f} times the usual; {whose}"
        )
    engine = seen.engine
    if engine is None or engine.running == 0:
        return Verdict(State.IDLE, (), f"the last token went through all ranks {quiet_s:.0f} s ago")
    if seen.at_s - memory.generated_s < 2 * policy.recheck_s:
        return Verdict(State.BUSY, (), f"{engine.running} requests in work, tokens come")
    why = f"{engine.running} requests in work, no new token, the prompt's tokens grew {quiet_s:.0f} s ago"
    return Verdict(State.PREFILL, (), why)


def _culprit(ranks: Mapping[str, RankSeen]) -> tuple[tuple[str, ...], str]:
    """Ranks that wait in a collective spin; the one that does not is the one they wait for."""
    used = {name: rank.processors for name, rank in ranks.items() if rank.processors is not None}
    still = [name for name, value in used.items() if value < STILL_PROCESSORS]
    spinning = [name for name, value in used.items() if value >= SPINNING_PROCESSORS]
    if len(still) == 1 and len(spinning) == len(ranks) - 1:
        return tuple(still), f"{still[0]} stands still while the others spin: they wait for it"
    return (), "the ranks' processes do not show which one it is"


def _straggler(nodes: Mapping[str, NodeSeen]) -> tuple[tuple[str, ...], str]:
    """While one node is slow, the GPUs of the others wait in NCCL: busy by their utilization, and yet cool."""
    known = {
        name: node.gpu_utilization >= WAITING_UTILIZATION and node.gpu_power_w <= WAITING_POWER_W
        for name, node in nodes.items()
        if node.gpu_utilization is not None and node.gpu_power_w is not None
    }
    late = [name for name, waits in known.items() if not waits]
    if len(known) == len(nodes) > 1 and len(late) == 1:
        return tuple(late), f"the others wait in NCCL for {late[0]}"
    return (), "no single node stands out"
