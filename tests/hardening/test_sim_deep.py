"""The production loop in the rougher sea: it ends, tells no lies, and gets there once the faults are over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import NoProgress, SparkyardError, Undetermined
from orchestrator.model.step import Failure
from orchestrator.plan import stop, up
from orchestrator.run import Decide, Outcome, converge, dry_run
from orchestrator.verbs import let_rest
from tests.clusters import lab_cluster, lab_profile
from tests.hardening.deepsim import (
    DeepWorld,
    Died,
    Rough,
    deep,
    open_deep,
    serving_is_true,
    stopped_is_true,
)
from tests.hardening.figures import Figures
from tests.quick.test_sim import caught, mutated
from tests.sim import Violation, make_goal

SEEDS, BLOCKS = 640, 8
ROUNDS = 8
GOAL = make_goal(lab_profile(), lab_cluster())
CASES = Path(__file__).resolve().parents[1] / "cases" / "sim" / "seeds.json"
KINDS = {
    "lost": Rough(lost=0.05),
    "late": Rough(late=0.08),
    "twice": Rough(twice=0.3),
    "clock_jumps": Rough(clock_jumps=0.3),
    "disk_lies": Rough(disk_lies=0.1),
    "swapped": Rough(swapped=0.02),
    "replaced": Rough(replaced=0.004),
    "other_version": Rough(other_version=0.04),
    "all": Rough(
        before=0.02, after=0.02, job_dies=0.003, rank_dies=0.002, node_gone=0.004, slow=0.05, lost=0.01, late=0.02,
        twice=0.05, clock_jumps=0.05, disk_lies=0.01, swapped=0.004, other_version=0.01,
    ),
}  # fmt: skip


def decide_of(verb: str) -> Decide:
    """As the command line chooses it."""
    return up.verb(verb, GOAL)


async def run(
    sim: DeepWorld, verb: str, holder: str = "controller", choose: Callable[[str], Decide] = decide_of
) -> Outcome:
    """One call of a verb with what the command line does around it; the channels end with it."""
    world = open_deep(sim, holder)
    try:
        if verb == "stop":
            await let_rest(world, GOAL.profile.name, "stopped")
        outcome = await converge(world, choose(verb), lease_wait_s=120.0 if verb == "stop" else 0.0)
        if outcome.failures and outcome.leased and verb in {"up", "restart"}:
            await converge(world, up.abandon(GOAL))
        return outcome
    finally:
        for node in world.nodes.values():
            await node.close()


def attempt(
    sim: DeepWorld, verb: str = "up", choose: Callable[[str], Decide] = decide_of
) -> tuple[Failure, ...] | None:
    """The failures of one call; None when it could not find out. NoProgress only after a disk has lied."""
    lied = sim.lied
    try:
        return asyncio.run(run(sim, verb, choose=choose)).failures
    except Undetermined:
        return None
    except NoProgress as error:
        if sim.lied == lied:
            raise Violation(f"no progress, and no disk has lied: {error}") from None
        return (Failure("all", "failed", str(error)),)


def settle(sim: DeepWorld) -> None:
    """It gets there once the faults are over, and then there is nothing to do."""
    sim.heal()
    failures: tuple[Failure, ...] | None = None
    for _ in range(3):
        failures = attempt(sim)
        if failures == ():
            break
    if failures != ():
        raise Violation(f"does not settle: {failures}")
    serving_is_true(GOAL, sim.facts)
    stages, blocked = dry_run(up.verb("up", GOAL), sim.facts)
    if stages or blocked:
        raise Violation(f"settled, and yet it plans {[stage.title for stage in stages]} {blocked}")
    if attempt(sim, "stop") != ():
        raise Violation("does not stop")
    stopped_is_true(GOAL, sim.facts)


def live(seed: int, kind: str, choose: Callable[[str], Decide] = decide_of) -> DeepWorld:
    """A few calls of verbs under faults, then the peace."""
    sim = deep(GOAL, seed, KINDS[kind])
    for number in range(ROUNDS):
        verb = ("up", "up", "up", "restart", "stop")[(seed + number) % 5]
        before = len(sim.injected)
        failures = attempt(sim, verb, choose)
        if failures == () and verb == "up" and len(sim.injected) == before:
            serving_is_true(GOAL, sim.facts)
        if failures == () and verb == "stop":
            stopped_is_true(GOAL, sim.facts)
    settle(sim)
    return sim


@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_goes_wrong_it_ends_and_gets_there(block: int, figures: Figures) -> None:
    kinds = sorted(KINDS)
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        kind = kinds[seed % len(kinds)]
        try:
            sim = live(seed, kind)
        except (Violation, SparkyardError) as error:
            raise AssertionError(f"seed {seed}, {kind}: {error}") from error
        figures.add("simulator: seeds run")
        figures.add("simulator: faults injected", len(sim.injected))


def test_seeds_that_have_found_something_stay_found() -> None:
    for case in json.loads(CASES.read_text()):
        live(int(case["seed"]), case["kind"])


def test_a_stop_that_forgets_silent_nodes_is_caught() -> None:
    broken = mutated(stop, "        or _unanswered(goal, facts)\n", "")
    grace_s = GOAL.profile.deadlines.drain_s

    def choose(verb: str) -> Decide:
        return (
            decide_of(verb) if verb != "stop" else lambda facts: broken.decide(GOAL, facts, grace_s=grace_s)
        )

    KINDS["gone"] = Rough(node_gone=0.05)
    try:
        assert caught(lambda seed: live(seed, "gone", choose), seeds=60)
        for seed in range(8):
            live(seed, "gone")
    finally:
        del KINDS["gone"]


def test_another_machine_under_the_same_address_is_named() -> None:
    sim = deep(GOAL, 5)
    sim.replace_at = 40
    failures = attempt(sim)
    assert failures
    assert any("another machine answers" in failure.message for failure in failures), failures
    settle(sim)


def test_the_controller_dies_at_every_message_of_every_verb(figures: Figures) -> None:
    for seed in (1,):
        for before, verb in ((), "up"), (("up",), "restart"), (("up",), "stop"):
            number = 0
            while True:
                number += 1
                sim = deep(GOAL, seed)
                for each in before:
                    assert attempt(sim, each) == ()
                sim.asks, sim.crash_at = 0, number
                try:
                    asyncio.run(run(sim, verb))
                except Died:
                    figures.add(
                        "crash points: the controller ended at a message of up, restart or stop (simulator)"
                    )
                else:
                    break
                settle(sim)
            assert number > 20


@pytest.mark.parametrize("other", ["up", "stop", "restart"])
def test_two_controllers_at_once(other: str, figures: Figures) -> None:
    for seed in range(60):
        sim = deep(GOAL, seed)
        if seed % 2:
            assert attempt(sim) == ()

        async def both(sim: DeepWorld = sim) -> list[Outcome]:
            return list(await asyncio.gather(run(sim, "up", "one"), run(sim, other, "two")))

        try:
            outcomes = asyncio.run(both())
            assert all(outcome.failures or outcome.leased for outcome in outcomes)
            settle(sim)
        except (Violation, SparkyardError) as error:
            raise AssertionError(f"seed {seed}, up beside {other}: {error}") from error
        figures.add("simulator: seeds run with two controllers")
