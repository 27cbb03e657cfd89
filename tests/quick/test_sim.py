"""The production loop over simulated nodes: it settles, whatever goes wrong, and planted faults are caught."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path

import pytest

from orchestrator import run as production
from orchestrator.errors import SparkyardError
from orchestrator.model.step import Failure
from orchestrator.plan import build, pack, serve, share, up
from orchestrator.run import dry_run
from tests.clusters import lab_cluster, lab_profile
from tests.sim import Faults, SimWorld, Violation, make_goal, open_world

SEEDS = 500
ROUNDS = 12
"""Runs of `up` with faults before one without: an owner who tries again."""


def rough(seed: int) -> Faults:
    """One kind of trouble a seed, sometimes all of them, so that each is met alone too."""
    kinds = [
        Faults(before=0.1),
        Faults(after=0.1),
        Faults(job_dies=0.02),
        Faults(rank_dies=0.01),
        Faults(node_gone=0.02),
        Faults(slow=0.3),
        Faults(before=0.03, after=0.03, job_dies=0.005, rank_dies=0.002, node_gone=0.005, slow=0.05),
    ]
    return kinds[seed % len(kinds)]


def world(seed: int, faults: Faults | None = None) -> SimWorld:
    return SimWorld(make_goal(lab_profile(), lab_cluster()), seed, faults or Faults())


def attempt(
    sim: SimWorld, verb: str = "up", loop: types.ModuleType = production, decide=None
) -> tuple[Failure, ...]:
    """One call of the verb, and the cleaning up that follows a failed start."""
    goal = sim.goal

    async def go() -> tuple[Failure, ...]:
        opened = open_world(sim, "controller")
        outcome = await loop.converge(opened, decide or up.verb(verb, goal))
        sim.reported_until = len(sim.injected)
        if outcome.failures and verb == "up" and outcome.leased:
            await loop.converge(opened, up.abandon(goal))
        return outcome.failures

    return asyncio.run(go())


def settle(seed: int, loop: types.ModuleType = production, make_decide=None) -> SimWorld:
    """Try under faults, then without: it must get there, and then there is nothing to do."""
    sim = world(seed, rough(seed))
    for _ in range(ROUNDS):
        before = len(sim.injected)
        try:
            failures = attempt(sim, loop=loop, decide=make_decide and make_decide(sim.goal))
        except production.Undetermined:
            continue
        hit = {name for name, what in sim.injected[before:] if what.endswith(("refused", "lost", "died"))}
        if (
            failures
            and hit
            and not {failure.node for failure in failures} & {name for name, _ in sim.injected[before:]}
        ):
            raise Violation(f"failed nodes {hit}, reported {failures}")
        if not failures:
            break
    sim.faults = Faults()
    sim.gone_until.clear()
    for _ in range(3):
        failures = attempt(sim, loop=loop, decide=make_decide and make_decide(sim.goal))
        if not failures:
            break
    if failures:
        raise Violation(f"does not settle: {failures}")
    stages, blocked = dry_run(up.verb("up", sim.goal), sim.facts)
    if stages or blocked:
        raise Violation(f"settled, and yet it plans {[stage.title for stage in stages]} {blocked}")
    return sim


@pytest.mark.parametrize("block", range(10))
def test_settles_whatever_goes_wrong(block: int) -> None:
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            settle(seed)
        except (Violation, SparkyardError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_same_seed_same_events() -> None:
    for seed in (3, 6, 13):
        assert settle(seed).events == settle(seed).events


def test_without_faults_the_plan_is_what_runs_and_predictions_hold() -> None:
    sim = world(1)
    planned, blocked = dry_run(up.verb("up", sim.goal), sim.facts)
    assert not blocked

    async def go() -> production.Outcome:
        return await production.converge(
            open_world(sim, "controller", strict_conformance=True), up.verb("up", sim.goal)
        )

    outcome = asyncio.run(go())
    assert not outcome.failures
    assert [stage.title for stage in outcome.stages] == [stage.title for stage in planned]
    assert [event["title"] for event in sim.events if event["event"] == "StageStarted"] == [
        s.title for s in planned
    ]


def test_another_deployment_in_the_same_root_is_refused_until_that_one_rests() -> None:
    sim = settle(0)
    profile = sim.goal.profile.model_copy(update={"name": "other"})
    other = make_goal(profile, sim.goal.cluster)
    _, blocked = dry_run(up.verb("serve", other), sim.facts)
    assert {failure.node for failure in blocked} == {node.name for node in sim.goal.ranked}
    assert all(sim.goal.profile.name in failure.message for failure in blocked)
    assert attempt(sim, "stop") == ()
    _, blocked = dry_run(up.verb("serve", other), sim.facts)
    assert blocked == ()


def test_a_failed_node_does_not_cancel_the_others() -> None:
    sim = world(2)
    sim.faults = Faults(before=1.0)
    failures = attempt(sim, "build")
    assert [failure.node for failure in failures] == ["spark-1"]
    sim.faults = Faults()
    assert not attempt(sim, "build")


def test_two_controllers_exclude_each_other() -> None:
    sim = world(4)
    leases = dict.fromkeys(sim.facts, "somebody else")

    async def go() -> production.Outcome:
        return await production.converge(
            open_world(sim, "controller", leases=leases), up.verb("up", sim.goal)
        )

    outcome = asyncio.run(go())
    assert {failure.node for failure in outcome.failures} == set(sim.facts)
    assert all("somebody else" in failure.message for failure in outcome.failures)
    assert not outcome.leased


def mutated(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    """A copy of a production module with one planted fault. The original is not touched."""
    source = Path(module.__file__ or "").read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
    copy = types.ModuleType(f"{module.__name__}_mutated")
    copy.__file__ = module.__file__
    sys.modules[copy.__name__] = copy
    exec(compile(source.replace(old, new), module.__file__ or "", "exec"), copy.__dict__)  # noqa: S102 - our own source
    return copy


def caught(run, seeds: int = 100) -> bool:
    """True when one of the seeds shows the fault."""
    for seed in range(seeds):
        try:
            run(seed)
        except (Violation, SparkyardError, AssertionError):
            return True
    return False


def with_serve(module: types.ModuleType):
    """`up` with another `serve`."""

    def make(goal):
        target = None

        def decide(facts):
            nonlocal target
            if target is None:
                target = module.generation(goal, facts)
            first = build.decide(goal, facts) or share.decide(goal, facts) or pack.decide(goal, facts)
            return first or module.decide(goal, facts, target)

        return decide

    return make


def test_mutation_head_before_workers_is_caught() -> None:
    broken = mutated(serve, "    if workers:\n", "    if workers and 0 not in missing:\n")
    assert caught(lambda seed: settle(seed, make_decide=with_serve(broken)))


def test_mutation_no_stop_barrier_is_caught() -> None:
    broken = mutated(
        serve,
        "        or _stop_barrier(goal, facts, target, DEAD_GRACE_S if by_watch else goal.profile.deadlines.drain_s)\n",
        "",
    )
    assert caught(lambda seed: restarts_cleanly(seed, broken))
    assert not caught(lambda seed: restarts_cleanly(seed, serve), seeds=5)


def restarts_cleanly(seed: int, module: types.ModuleType) -> None:
    """A gang of an older generation runs when a new one is asked for."""
    sim = settle(seed)
    newer = 1 + max(here.desired.generation for here in sim.facts.values())
    if failures := attempt(sim, "serve", decide=lambda facts: module.decide(sim.goal, facts, newer)):
        raise Violation(str(failures))


def test_mutation_failure_cancels_others_is_caught() -> None:
    broken = mutated(
        production,
        "answers = await asyncio.gather(*(_do_step(world, step) for step in stage.steps))",
        "answers = await _until_first_failure(world, stage.steps)",
    )

    async def until_first_failure(opened, wanted):
        answers = []
        for step in wanted:
            answers.append(await broken._do_step(opened, step))
            if answers[-1].failure is not None:
                break
        return answers

    broken._until_first_failure = until_first_failure
    assert caught(lambda seed: every_node_is_tried(seed, broken))
    assert not caught(lambda seed: every_node_is_tried(seed, production), seeds=5)


def every_node_is_tried(seed: int, loop: types.ModuleType) -> None:
    """With every attach failing, each node must report its own failure."""
    sim = world(seed)
    assert not attempt(sim, "build", loop=loop)
    sim.faults = Faults(before=1.0)
    failures = attempt(sim, "share", loop=loop)
    if {failure.node for failure in failures} != set(sim.facts):
        raise Violation(f"only {[failure.node for failure in failures]} were tried")


def test_mutation_failure_read_as_success_is_caught() -> None:
    broken = mutated(
        production,
        "failures = tuple(answer.failure for answer in answers if answer.failure is not None)\n    if failures:\n",
        "failures = ()\n    if failures:\n",
    )
    assert caught(lambda seed: settle(seed, loop=broken))


def test_mutation_wait_without_deadline_is_caught() -> None:
    broken = mutated(production, "if now - begin > wait.deadline_s:", "if wait.deadline_s < 0:")

    def never_joins(seed: int, loop: types.ModuleType) -> None:
        sim = world(seed)
        sim.chance = lambda _: False  # nothing ever happens by itself
        failures = attempt(sim, loop=loop)
        if [failure.kind for failure in failures] != ["timeout"]:
            raise Violation(str(failures))

    assert caught(lambda seed: never_joins(seed, broken))
    never_joins(1, production)
