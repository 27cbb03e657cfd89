"""up: build, share, pack, serve, in this order."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import Decision
from orchestrator.plan import build, fetch, fit, pack, serve, share, stop
from orchestrator.plan.fit import Budget

Decide = Callable[[ClusterFacts], Decision]
FAILED_START_GRACE_S = 10.0
"""A gang that failed has no requests to drain."""


def serve_once(goal: Goal, *, restart: bool = False, by_watch: bool = False) -> Decide:
    """`serve.decide` towards one generation, chosen at the first look of this run."""
    target: int | None = None

    def decide(facts: ClusterFacts) -> Decision:
        nonlocal target
        if target is None:
            target = serve.newest(goal, facts) + 1 if restart else serve.generation(goal, facts)
        return serve.decide(goal, facts, target, by_watch=by_watch)

    return decide


def prepare(goal: Goal) -> Decide:
    """Everything of `up` before its serve: nothing that serves is touched by it."""

    def decide(facts: ClusterFacts) -> Decision:
        return build.decide(goal, facts) or share.decide(goal, facts) or pack.decide(goal, facts)

    return decide


def up(goal: Goal, *, restart: bool = False, by_watch: bool = False) -> Decide:
    """The first stage that any of the four still wants."""
    serving = serve_once(goal, restart=restart, by_watch=by_watch)

    preparing = prepare(goal)
    return lambda facts: preparing(facts) or serving(facts)


def judged(goal: Goal, budget: Callable[[], Budget] | None, decide: Decide, *, disks: bool) -> Decide:
    """`decide`, once the ledgers have let it pass: at the first look of a run, unless the gang runs already."""
    passed = budget is None

    def first(facts: ClusterFacts) -> Decision:
        nonlocal passed
        if not passed and budget is not None:
            judges = fit.applies(goal.profile, goal.cluster, facts) and not runs(goal, facts)
            if judges and (blocked := fit.refused(goal, facts, budget(), disks=disks)):
                return blocked
            passed = True
        return decide(facts)

    return first


def runs(goal: Goal, facts: ClusterFacts) -> bool:
    """Whether every rank of the newest generation lives: what runs has shown that it fits."""
    newest = serve.newest(goal, facts)
    found = [
        facts[node.name].rank(goal.profile.name, rank, newest) if node.name in facts else None
        for rank, node in enumerate(goal.ranked)
    ]
    return all(rank is not None and rank.alive for rank in found)


def verb(name: str, goal: Goal, budget: Callable[[], Budget] | None = None) -> Decide:
    """`decide` of a converging verb. KeyError for any other.

    `budget`: judge memory before anything is started, and disks before anything is moved; None judges nothing.
    """
    match name:
        case "build":
            return lambda facts: build.decide(goal, facts)
        case "share":
            return lambda facts: share.decide(goal, facts)
        case "fetch":
            return lambda facts: fetch.decide(goal, facts)
        case "unshare":
            return lambda facts: share.undo(goal, facts)
        case "pack":
            return lambda facts: pack.decide(goal, facts)
        case "serve":
            return judged(goal, budget, serve_once(goal), disks=False)
        case "restart":
            return judged(goal, budget, serve_once(goal, restart=True), disks=False)
        case "up":
            return judged(goal, budget, up(goal), disks=True)
        case "stop":
            return lambda facts: stop.decide(goal, facts, grace_s=goal.profile.deadlines.drain_s)
    raise KeyError(name)


def clear(goal: Goal) -> Decide:
    """After a start by the watch that failed: its ranks end, and what is wanted stays wanted."""
    return lambda facts: stop.ranks(goal, facts, FAILED_START_GRACE_S)


def abandon(goal: Goal, why: str = "") -> Decide:
    """After a failed start: every rank of it ends, quickly, so that nobody waits for the dead."""
    return lambda facts: stop.decide(goal, facts, grace_s=FAILED_START_GRACE_S, why=why)
