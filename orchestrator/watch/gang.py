"""One step of the watch: take in what was seen, find what the gang is, decide what to do about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.watch.policy import Memory, Policy, Target
from orchestrator.watch.seen import Seen, failed_in_a_row, wanted
from orchestrator.watch.verdict import State, Verdict, judge


@dataclass(frozen=True, slots=True)
class Nothing:
    """Look again."""


@dataclass(frozen=True, slots=True)
class AskCanary:
    """A short generation through all ranks."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class KeepEvidence:
    """Nothing can be done now, and what the ranks wrote may be gone by the time that something can."""

    why: str


@dataclass(frozen=True, slots=True)
class Revive:
    """Save the evidence, then bring it to serving: `fresh` as the next generation, else what runs is carried on."""

    fresh: bool
    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Save the evidence, stop every rank, write `stopped` with the reason: a person has to look."""

    why: str


Decision = Nothing | AskCanary | KeepEvidence | Revive | GiveUp


def step(policy: Policy, target: Target, memory: Memory, seen: Seen) -> tuple[Memory, Verdict, Decision]:
    """What is remembered from now on, what the gang is, and what to do."""
    desired = wanted(seen.nodes, target.deployment)
    if desired is None or desired.state == "stopped":
        return _at_rest(memory), Verdict(State.STOPPED, (), "nobody wants it to serve"), Nothing()
    if desired.state == "maintenance":
        return _at_rest(memory), Verdict(State.MAINTENANCE, (), "a person works on it"), Nothing()
    if desired.profile != target.profile:
        why = f"generation {desired.generation} was started from another version of the profile: restart the monitor"
        return _at_rest(memory), Verdict(State.FOREIGN, (), why), Nothing()
    if held := {name: node.holder for name, node in seen.nodes.items() if node.holder}:
        why = "the lease is held by " + ", ".join(sorted({str(holder) for holder in held.values()}))
        return _at_rest(memory), Verdict(State.ACTING, tuple(sorted(held)), why), Nothing()
    memory = _learn(policy, _of_generation(memory, desired.generation, seen), seen)
    memory, verdict = judge(policy, target, memory, seen, desired.generation)
    memory = _health(policy, memory, verdict, seen.at_s)
    memory, decision = _decide(policy, target, memory, seen, verdict)
    if isinstance(decision, GiveUp):
        verdict = Verdict(State.GIVEN_UP, verdict.nodes, decision.why)
    return memory, verdict, decision


def revived(policy: Policy, memory: Memory, at_s: float) -> Memory:
    """After a restart, however it ended: the next one waits longer."""
    restarts = (*_recent(policy, memory, at_s), at_s)
    wait_s = min(policy.back_off_s * 2 ** (len(restarts) - 1), policy.back_off_max_s)
    return replace(_at_rest(memory), restarts=restarts, not_before_s=at_s + wait_s)


def _at_rest(memory: Memory) -> Memory:
    """Nothing is suspected while nothing is wanted, or while somebody else acts."""
    return Memory(
        restarts=memory.restarts, not_before_s=memory.not_before_s, canary_seen_s=memory.canary_seen_s
    )


def _of_generation(memory: Memory, generation: int, seen: Seen) -> Memory:
    """Another generation is another gang: what was learnt of the former does not hold."""
    if memory.generation == generation:
        return memory
    fresh = _at_rest(memory)
    return replace(fresh, generation=generation, life_s=seen.at_s, canary_due_s=seen.at_s)


def _learn(policy: Policy, memory: Memory, seen: Seen) -> Memory:
    """Take in the canary and the work counters."""
    canary = seen.canary
    if canary is not None and canary.ended_s > memory.canary_seen_s:
        pace_s = policy.canary_pace_s if canary.answered and canary.right else policy.recheck_s
        memory = replace(
            memory, canary_seen_s=canary.ended_s, canary_asked_s=None, canary_due_s=seen.at_s + pace_s
        )
        if canary.answered:
            usual_s = memory.usual_s if memory.usual_s is not None else canary.seconds
            slow = canary.seconds > max(policy.slow_min_s, policy.slow_factor * usual_s)
            memory = replace(
                memory,
                life_s=max(memory.life_s, canary.ended_s),
                failed_canaries=0,
                wrong=0 if canary.right else memory.wrong + 1,
                slow=memory.slow + 1 if slow else 0,
                usual_s=usual_s if slow else 0.8 * usual_s + 0.2 * canary.seconds,
            )
        else:
            first = memory.failed_canaries == 0
            memory = replace(
                memory,
                failed_canaries=memory.failed_canaries + 1,
                failed_canary=canary.why or "no answer",
                doubt_since_s=canary.asked_s if first else memory.doubt_since_s,
            )
    engine = seen.engine
    if engine is not None and engine.work != memory.work:
        if memory.work is not None:
            generated = engine.generated != memory.work[0]
            memory = replace(
                memory,
                life_s=seen.at_s,
                failed_canaries=0,
                generated_s=seen.at_s if generated else memory.generated_s,
            )
        memory = replace(memory, work=engine.work)
    return memory


def _health(policy: Policy, memory: Memory, verdict: Verdict, at_s: float) -> Memory:
    """Long good health wipes out the back-off."""
    if verdict.state not in {State.IDLE, State.BUSY, State.PREFILL, State.PRESSURE, State.SLOW}:
        return memory if memory.good_since_s is None else replace(memory, good_since_s=None)
    since_s = at_s if memory.good_since_s is None else memory.good_since_s
    if at_s - since_s >= policy.stable_s and memory.restarts:
        return replace(memory, good_since_s=since_s, restarts=(), not_before_s=0.0)
    return memory if memory.good_since_s == since_s else replace(memory, good_since_s=since_s)


def _recent(policy: Policy, memory: Memory, at_s: float) -> tuple[float, ...]:
    return tuple(begin for begin in memory.restarts if at_s - begin < policy.window_s)


def _decide(
    policy: Policy, target: Target, memory: Memory, seen: Seen, verdict: Verdict
) -> tuple[Memory, Decision]:
    if verdict.state is not State.UNREACHABLE and memory.kept:
        memory = replace(memory, kept=False)
    match verdict.state:
        case State.UNREACHABLE if not memory.kept and _silent_s(memory, seen) >= policy.silent_s:
            return replace(memory, kept=True), KeepEvidence(f"{verdict.state}: {verdict.why}")
        case State.DOWN | State.DEAD | State.HUNG | State.GARBAGE:
            return memory, _revive(policy, memory, seen, fresh=True, why=f"{verdict.state}: {verdict.why}")
        case State.BOOTING if _orphaned(policy, target, memory, seen):
            return memory, _revive(
                policy, memory, seen, fresh=False, why=f"nobody carries it on: {verdict.why}"
            )
        case State.IDLE | State.BUSY | State.PREFILL | State.SLOW | State.PRESSURE | State.UNREACHABLE:
            return _canary(policy, target, memory, seen)
    return memory, Nothing()


def _silent_s(memory: Memory, seen: Seen) -> float:
    """For how long the node that has been silent longest does not answer."""
    return max(
        (seen.at_s - memory.since.get(f"silent {name}", seen.at_s) for name in seen.silent), default=0.0
    )


def _orphaned(policy: Policy, target: Target, memory: Memory, seen: Seen) -> bool:
    """A boot that is whole so far and that nobody carries on: its controller died."""
    whole = all(name in seen.nodes and seen.nodes[name].rank for name in target.nodes)
    return whole and seen.at_s - memory.since.get("orphan", seen.at_s) >= policy.orphan_s


def _revive(policy: Policy, memory: Memory, seen: Seen, *, fresh: bool, why: str) -> Decision:
    failed = failed_in_a_row(seen.boots)
    if fresh and failed >= policy.failed_boots_max:
        return GiveUp(f"{failed} boots failed one after the other; last: {why}")
    recent = _recent(policy, memory, seen.at_s)
    if len(recent) >= policy.restarts_max:
        return GiveUp(f"{len(recent)} restarts within {policy.window_s / 60:.0f} minutes; last: {why}")
    if seen.at_s < memory.not_before_s:
        return Nothing()
    return Revive(fresh, why)


def _canary(policy: Policy, target: Target, memory: Memory, seen: Seen) -> tuple[Memory, Decision]:
    head = seen.nodes.get(target.nodes[0])
    if memory.canary_asked_s is not None or head is None or head.rank is None:
        return memory, Nothing()
    quiet_s = seen.at_s - memory.life_s
    waiting = seen.engine is not None and seen.engine.running > 0 and quiet_s >= 2 * policy.recheck_s
    # a canary tells a node whose network is gone from one that is gone itself
    unsure = bool(seen.silent) and max(memory.life_s, memory.canary_seen_s) <= seen.at_s - _silent_s(
        memory, seen
    )
    if seen.at_s < memory.canary_due_s and not waiting and not unsure:
        return memory, Nothing()
    return replace(memory, canary_asked_s=seen.at_s), AskCanary(policy.canary_s)
