"""up: build, share, pack, serve, in this order."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import Decision
from orchestrator.plan import build, fetch, pack, serve, share, stop

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


def up(goal: Goal, *, restart: bool = False, by_watch: bool = False) -> Decide:
    """The first stage that any of the four still wants."""
    serving = serve_once(goal, restart=restart, by_watch=by_watch)

    def decide(facts: ClusterFacts) -> Decision:
        return (
            build.decide(goal, facts)
            or share.decide(goal, facts)
            or pack.decide(goal, facts)
            or serving(facts)
        )

    return decide


def verb(name: str, goal: Goal) -> Decide:
    """`decide` of a converging verb. KeyError for any other."""
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
            return serve_once(goal)
        case "restart":
            return serve_once(goal, restart=True)
        case "up":
            return up(goal)
        case "stop":
            return lambda facts: stop.decide(goal, facts, grace_s=goal.profile.deadlines.drain_s)
    raise KeyError(name)


def clear(goal: Goal) -> Decide:
    """After a start by the watch that failed: its ranks end, and what is wanted stays wanted."""
    return lambda facts: stop.ranks(goal, facts, FAILED_START_GRACE_S)


def abandon(goal: Goal, why: str = "") -> Decide:
    """After a failed start: every rank of it ends, quickly, so that nobody waits for the dead."""
    return lambda facts: stop.decide(goal, facts, grace_s=FAILED_START_GRACE_S, why=why)
