"""serve: ranks up in order behind the memory gate, canary answered, smoke passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.model.facts import ClusterFacts, NodeFacts, RankFacts
from orchestrator.model.goal import Goal
from orchestrator.model.profile import RING_TP
from orchestrator.model.step import (
    AskCanary,
    Blocked,
    Decision,
    Failure,
    MemoryBack,
    OpenGate,
    RankAt,
    RunSmoke,
    SetDesired,
    Stage,
    StartRank,
    Step,
    StopRank,
    Wait,
)
from orchestrator.plan import build, image, pack, share, warm
from orchestrator.plan.fabric import looked_up
from orchestrator.plan.holds import ended_ranks
from orchestrator.plan.launch import rank_specs
from orchestrator.plan.missing import unanswered
from orchestrator.plan.predict import STOPPED

SHORT_BOUND_S = 60.0
DEAD_GRACE_S = 10.0
"""The watch restarts only what does not work any more: it has no requests to drain."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A rank's spec and its identity."""

    body: dict[str, Any]
    identity: str
    store: str


def specs(goal: Goal, facts: ClusterFacts, generation: int) -> tuple[Spec, ...]:
    """The spec of every rank, rank 0 first."""
    index = goal.index_sha256(facts) or ""
    stores = {rank: goal.store(rank, index) for rank in range(len(goal.ranked))}
    known = {rank: goal.slices(rank, index) for rank in stores}
    made = rank_specs(
        goal.profile,
        goal.cluster,
        generation=generation,
        stores=stores,
        slices={rank: found for rank, found in known.items() if found is not None},
        fabrics=looked_up(goal.cluster, facts),
    )
    return tuple(Spec(dict(spec.body), spec.identity, stores[spec.rank]) for spec in made)


def newest(goal: Goal, facts: ClusterFacts) -> int:
    """The newest generation that any node was told of; 0 before the first."""
    name = goal.profile.name
    return max(
        (
            here.desired.generation
            for here in facts.values()
            if here.desired and here.desired.deployment == name
        ),
        default=0,
    )


def generation(goal: Goal, facts: ClusterFacts) -> int:
    """The generation to reach: the desired one while its gang can be adopted, otherwise the next.

    Computed once at the start of a run. A rank of it that ends later is a failure of that run, never the
    silent beginning of another generation.
    """
    name, highest = goal.profile.name, newest(goal, facts)
    known = [node.desired for node in facts.values() if node.desired and node.desired.deployment == name]
    if not known or any(record.generation == highest and record.state != "serving" for record in known):
        return highest + 1
    wanted = specs(goal, facts, highest)
    for rank, node in enumerate(goal.ranked):
        here = facts[node.name].rank(name, rank, highest) if node.name in facts else None
        if here is not None and (not here.alive or here.spec != wanted[rank].identity):
            return highest + 1
    return highest


def decide(goal: Goal, facts: ClusterFacts, target: int, *, by_watch: bool = False) -> Decision:
    """One stage of: desired record → stop barrier → memory gate → workers → head → gate → canary → smoke.

    `by_watch`: the desired record is only moved on while it says serving.
    """
    return (
        unanswered(goal, facts)
        or refused_ring(goal)
        or _rests(goal, facts, target)
        or _another(goal, facts)
        or _prepared(goal, facts)
        or _ended(goal, facts, target)
        or _desired(goal, facts, target, by_watch=by_watch)
        or _stop_barrier(goal, facts, target, DEAD_GRACE_S if by_watch else goal.profile.deadlines.drain_s)
        or _ports_free(goal, facts, target)
        or _start(goal, facts, target)
        or _activate(goal, facts, target)
        or _plugin_proven(goal, facts, target)
        or _probe(goal, facts, target)
    )


def _here(goal: Goal, facts: ClusterFacts, target: int) -> list[tuple[int, NodeFacts, RankFacts | None]]:
    name = goal.profile.name
    return [(r, facts[n.name], facts[n.name].rank(name, r, target)) for r, n in enumerate(goal.ranked)]


def _prepared(goal: Goal, facts: ClusterFacts) -> Blocked | None:
    for verb, decision in (
        ("build", build.decide(goal, facts)),
        ("share", share.decide(goal, facts)),
        ("pack", pack.decide(goal, facts)),
    ):
        match decision:
            case Blocked():
                return decision
            case Stage(title=title, steps=steps, waits=waits):
                nodes = sorted({step.node for step in steps} | {wait.node for wait in waits})
                return Blocked(
                    tuple(
                        Failure(
                            node, "refused", f"not prepared: {title}", f"sparkyard {verb}, or sparkyard up"
                        )
                        for node in nodes
                    )
                )
            case None:
                continue
    return None


def refused_ring(goal: Goal) -> Blocked | None:
    """Four nodes in a ring: not every pair meets, and stock NCCL never connects."""
    profile = goal.profile
    if goal.cluster.topology != "ring" or profile.parallel.tp != RING_TP or profile.nccl is not None:
        return None
    text = (
        f"a ring of {RING_TP} nodes at tp {RING_TP}, and the profile names no NCCL library that can run one"
    )
    remedy = "join them by a switch, or set nccl: {library, sha256, source} in the profile"
    return Blocked((Failure(goal.head.name, "refused", text, remedy),))


def _ended(goal: Goal, facts: ClusterFacts, target: int) -> Blocked | None:
    failures = ended_ranks(facts, goal.profile.name, target)
    return Blocked(failures) if failures else None


def _rests(goal: Goal, facts: ClusterFacts, target: int) -> Blocked | None:
    """Somebody stopped this very generation meanwhile, or works on the deployment."""
    failures = []
    for here in facts.values():
        record = here.desired
        if record is None or record.deployment != goal.profile.name:
            continue
        if record.state == "maintenance":
            remedy = "sparkyard maintain --end, or sparkyard stop"
            failures.append(Failure(here.node, "refused", "it is in maintenance", remedy))
        elif record.state == "stopped" and record.generation == target:
            why = f"generation {target} was stopped meanwhile{': ' if record.why else ''}{record.why}"
            failures.append(Failure(here.node, "refused", why, "start it again when nobody objects"))
    return Blocked(tuple(failures)) if failures else None


def _another(goal: Goal, facts: ClusterFacts) -> Blocked | None:
    """Another deployment serves from the same root: the one desired record there is its own, and stays so."""
    failures = []
    for node in goal.ranked:
        record = facts[node.name].desired
        if record is None or record.deployment == goal.profile.name or record.state == "stopped":
            continue
        if any(found.alive and found.deployment == record.deployment for found in facts[node.name].ranks):
            text = f"the desired record in {node.root} is that of {record.deployment}, whose rank runs here"
            remedy = f"stop {record.deployment} first, or give this deployment another root (nodes[].root)"
            failures.append(Failure(node.name, "refused", text, remedy))
    return Blocked(tuple(failures)) if failures else None


def _desired(goal: Goal, facts: ClusterFacts, target: int, *, by_watch: bool) -> Stage | None:
    action = SetDesired(goal.profile.name, target, "serving", goal.profile.identity, only_if_serving=by_watch)
    steps = tuple(
        Step(node.name, action, "the desired record is written first", SHORT_BOUND_S)
        for node in goal.ranked
        if (record := facts[node.name].desired) is None
        or (record.deployment, record.generation, record.state, record.profile)
        != (action.deployment, target, "serving", action.profile)
    )
    return Stage(f"desired: {goal.profile.name} serving, generation {target}", steps) if steps else None


def _stop_barrier(goal: Goal, facts: ClusterFacts, target: int, grace_s: float) -> Stage | None:
    """Nobody of an older generation may live: its rendezvous would swallow the new ranks."""
    steps = []
    for here in facts.values():
        for found in here.ranks:
            if found.alive and found.deployment == goal.profile.name and found.generation != target:
                action = StopRank(found.deployment, found.generation, found.rank, grace_s)
                steps.append(
                    Step(
                        here.node,
                        action,
                        "a rank of an older generation runs",
                        action.grace_s + SHORT_BOUND_S,
                    )
                )
    return Stage("stop the older gang", tuple(steps)) if steps else None


def _ports_free(goal: Goal, facts: ClusterFacts, target: int) -> Blocked | None:
    ports = goal.profile.ports
    taken = []
    for rank, here, found in _here(goal, facts, target):
        if found is not None or any(known.ended == STOPPED for known in here.ranks):
            continue  # of a stop that is only predicted, nobody knows yet which ports it frees
        wanted = {"api": ports.api} | (
            {"gate": ports.gate, "rendezvous": ports.rendezvous} if rank == 0 else {}
        )
        node = goal.ranked[rank]
        for name, port in wanted.items():
            for listener in here.listeners:
                if listener.port == goal.port(node, port):
                    owner = (
                        f"{listener.process} (pid {listener.pid})"
                        if listener.pid
                        else "another user's process"
                    )
                    taken.append(
                        Failure(
                            node.name,
                            "refused",
                            f"port {listener.port} ({name}) is taken by {owner}",
                            f"end it, or set ports.{name} in the profile",
                        )
                    )
    return Blocked(tuple(taken)) if taken else None


def _start(goal: Goal, facts: ClusterFacts, target: int) -> Stage | None:
    """Workers first: rank 0 needs all of them, and a worker that cannot start ends the boot before the head begins."""
    missing = [rank for rank, _, found in _here(goal, facts, target) if found is None]
    workers = [rank for rank in reversed(missing) if rank != 0]
    gate_bytes = goal.profile.memory.gate_bytes
    low = [r for r in missing if facts[goal.ranked[r].name].memory.available_bytes < gate_bytes]
    if low:
        return Stage(
            "wait for memory",
            waits=tuple(
                Wait(
                    goal.ranked[rank].name,
                    MemoryBack(gate_bytes, goal.profile.name),
                    f"rank {rank} needs {gate_bytes / 2**30:.1f} GiB available",
                    goal.profile.deadlines.memory_s,
                )
                for rank in low
            ),
        )
    if not missing:
        return None
    made = specs(goal, facts, target)
    contained = goal.profile.engine.runtime == "docker"

    def start(rank: int) -> Step:
        node, spec = goal.ranked[rank], made[rank]
        action = StartRank(
            goal.profile.name,
            target,
            rank,
            spec.identity,
            spec.body,
            goal.package.digest,
            node.engine_python or "python3",
            image.content(goal) if contained else "",
        )
        return Step(node.name, action, f"rank {rank} is not running", SHORT_BOUND_S)

    if workers:
        return Stage("start the workers", tuple(start(rank) for rank in workers))
    return Stage("start the head", (start(0),), (_joined(goal, target),))


def _joined(goal: Goal, target: int) -> Wait:
    """Rank 0 answers at its gate only once every rank has joined; a single rank has no gate."""
    name, deadlines = goal.profile.name, goal.profile.deadlines
    if goal.profile.parallel.tp == 1:
        return _ready(goal, target)[0]
    until = RankAt(name, target, 0, "joined")
    return Wait(goal.head.name, until, "every rank joins the group", deadlines.join_s)


def _ready(goal: Goal, target: int) -> tuple[Wait, ...]:
    """Of every rank: a worker's guard may see its engine's port a moment after the head's, and what it shows then (its
    proof, the last phase of the boot) is judged and recorded next."""
    return tuple(
        Wait(
            node.name,
            RankAt(goal.profile.name, target, rank, "ready"),
            "weights, KV pool, warm-up",
            goal.profile.deadlines.ready_s,
        )
        for rank, node in enumerate(goal.ranked)
    )


def _activate(goal: Goal, facts: ClusterFacts, target: int) -> Stage | None:
    """The gate, or what is left of the way to ready when an earlier run has opened it."""
    name = goal.profile.name
    head = facts[goal.head.name].rank(name, 0, target)
    if head is None:
        raise AssertionError("the head's rank was just found running")
    if all(found.phase == "ready" for _, _, found in _here(goal, facts, target) if found is not None):
        return None
    cold = warm.note(goal, facts)
    aside = f"; {cold}" if cold else ""
    if goal.profile.parallel.tp == 1 or head.gate_open:
        return Stage(f"wait until it serves{aside}", waits=_ready(goal, target))
    if head.phase == "starting":
        return Stage("wait until every rank has joined", waits=(_joined(goal, target),))
    action = OpenGate(name, target, goal.port(goal.head, goal.profile.ports.gate))
    step = Step(goal.head.name, action, "every rank waits at the gate", SHORT_BOUND_S)
    return Stage(f"open the launch gate{aside}", (step,), _ready(goal, target))


def _plugin_proven(goal: Goal, facts: ClusterFacts, target: int) -> Blocked | None:
    """SGLang only logs a plug-in that fails: every rank must have shown that ours is active, with its own tables."""
    if goal.profile.engram.mode != "disk":
        return None
    wanted = specs(goal, facts, target)
    failures = [
        Failure(
            here.node,
            "failed",
            f"rank {rank} serves with Engram store {(found.proven_store or 'none')[:12]}, "
            f"expected {wanted[rank].store[:12]}",
            "the plug-in is not active on this rank; see its log",
            found.log_tail,
        )
        for rank, here, found in _here(goal, facts, target)
        if found is not None and found.proven_store != wanted[rank].store
    ]
    return Blocked(tuple(failures)) if failures else None


def _probe(goal: Goal, facts: ClusterFacts, target: int) -> Stage | None:
    name, deadlines = goal.profile.name, goal.profile.deadlines
    boot = facts[goal.head.name].boot(name, target)
    port, model = goal.port(goal.head, goal.profile.ports.api), goal.profile.model.served_name
    key_file = goal.profile.ports.api_key_file
    if boot is None or not boot.canary:
        canary = AskCanary(name, target, port, model, deadlines.canary_s, key_file)
        step = Step(
            goal.head.name, canary, "no answer has gone through all ranks yet", deadlines.canary_s + 10
        )
        return Stage("ask the canary", (step,))
    if not boot.smoke:
        smoke = RunSmoke(name, target, port, model, deadlines.smoke_s, key_file)
        step = Step(goal.head.name, smoke, "the API has not been tried yet", deadlines.smoke_s + 10)
        return Stage("smoke the API", (step,))
    return None
