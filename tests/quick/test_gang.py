"""The watch over simulated gangs: it restarts what is broken, nothing else, and not for ever."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from orchestrator.watch import gang, seen, verdict
from orchestrator.watch.bounds import bounds
from orchestrator.watch.gang import AskCanary, GiveUp, KeepEvidence, Nothing, Revive
from orchestrator.watch.guardian import PULSE_TIMEOUT_S
from orchestrator.watch.keep import LOOK_EVERY_S
from orchestrator.watch.policy import Memory, Policy
from orchestrator.watch.seen import BootSeen, CanarySeen, EngineSeen, Seen
from orchestrator.watch.verdict import State
from tests.gangsim import FAULTS, TARGET, GangWorld, Violation, live_through, record

SEEDS = 1000
Count = Callable[[str, object], None]


@pytest.mark.parametrize("block", range(10))
def test_restarts_what_is_broken_and_nothing_else(block: int, record_property: Count) -> None:
    restarts = given_up = 0
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            world = live_through(seed)
        except Violation as error:
            raise AssertionError(f"seed {seed} ({FAULTS[seed % len(FAULTS)]}): {error}") from error
        restarts += len(world.restarts)
        given_up += world.given_up
    record_property("seeds of the watch", SEEDS // 10)
    record_property("restarts by the watch", restarts)
    record_property("times that the breaker opened", given_up)


def test_every_state_occurs_and_the_breaker_opens() -> None:
    worlds = [live_through(seed) for seed in range(96)]
    states = set().union(*(world.states for world in worlds))
    never = {"FOREIGN", "PRESSURE", "DOWN", "BOOTING"}  # each has a case of its own below
    assert {state.name for state in State} - states <= never
    assert any(world.given_up for world in worlds)
    assert any(world.restarts and not world.given_up for world in worlds)


def test_same_seed_same_restarts() -> None:
    assert [live_through(seed).restarts for seed in range(30)] == [
        live_through(seed).restarts for seed in range(30)
    ]


def mutated(old: str, new: str, where: types.ModuleType = gang) -> types.ModuleType:
    """`gang` with one planted fault in it or in a module that it uses. The originals are not touched."""
    source = Path(where.__file__ or "").read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {where.__name__}"
    copy = types.ModuleType(f"{where.__name__}_mutated")
    sys.modules[copy.__name__] = copy
    exec(compile(source.replace(old, new), where.__file__ or "", "exec"), copy.__dict__)  # noqa: S102 - our own source
    if where is gang:
        for kind in (AskCanary, GiveUp, KeepEvidence, Nothing, Revive):
            setattr(copy, kind.__name__, kind)
        return copy
    top = mutated("from __future__ import annotations", "from __future__ import annotations")
    for name in ("judge", "wanted", "failed_in_a_row"):
        if hasattr(copy, name):
            setattr(top, name, getattr(copy, name))
    if where is verdict:
        copy.State = State
    if where is seen:
        top.patched = copy
    return top


MUTATIONS = {
    "acts while stopped": (gang, 'desired.state == "stopped"', 'desired.state == "never"'),
    "acts in maintenance": (gang, 'if desired.state == "maintenance":', "if False:"),
    "acts against a lease": (gang, "if node.holder}", "if node.holder and False}"),
    "no breaker on boots": (gang, "failed >= policy.failed_boots_max", "failed >= 99"),
    "breaker too early": (gang, "failed >= policy.failed_boots_max", "failed >= 1"),
    "no breaker on restarts": (gang, "len(recent) >= policy.restarts_max", "len(recent) >= 99"),
    "acts without a node": (verdict, "    if seen.silent:\n        return", "    if False:\n        return"),
    "ignores the dead": (verdict, "    if dead or missing:\n", "    if missing:\n"),
    "ignores the stopped": (verdict, "if rank and rank.stopped and not rank.dead]", "if rank and False]"),
    "wrong answers are fine": (gang, "wrong=0 if canary.right else memory.wrong + 1", "wrong=0"),
    "work is no life": (
        gang,
        "                life_s=seen.at_s,\n                failed_canaries=0,\n",
        "                life_s=memory.life_s,\n",
    ),
    "never asks a canary": (
        gang,
        "if seen.at_s < memory.canary_due_s and not waiting and not unsure:",
        "if True:",
    ),
    "one canary is enough": (
        verdict,
        "memory.failed_canaries >= policy.hang_canaries",
        "memory.failed_canaries >= 1",
    ),
    "a hang is never said": (verdict, "doubt_s >= policy.hang_s", "doubt_s >= 1e9"),
    "evidence at every look": (gang, "replace(memory, kept=True), KeepEvidence", "memory, KeepEvidence"),
    "a canary that failed is life": (
        gang,
        "            first = memory.failed_canaries == 0\n",
        "            memory = replace(memory, failed_canaries=-1)\n            first = True\n",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_fault_is_caught(name: str, record_property: Count) -> None:
    where, old, new = MUTATIONS[name]
    broken = mutated(old, new, where)
    for seed in range(200):
        try:
            live_through(seed, broken)
        except Violation:
            record_property("planted faults of the watch caught", 1)
            return
    raise AssertionError(f"200 seeds do not show: {name}")


# single looks ---------------------------------------------------------------------------------------------------


def at(world: GangWorld, at_s: float, **changes: object) -> Seen:
    """What is seen of this world at a time, with some of it replaced."""
    return replace(world.look(), at_s=at_s, **changes)


def run(world: GangWorld, looks: list[Seen]) -> tuple[State, object, str]:
    """State and decision after these looks."""
    memory = Memory()
    for look in looks:
        memory, found, decision = gang.step(Policy(), TARGET, memory, look)
    return found.state, decision, found.why


def test_one_node_that_says_stopped_is_enough() -> None:
    """A `stop` that reached one node only, or a node that was away while the gang was stopped."""
    world = GangWorld(1)
    nodes = dict(world.look().nodes)
    nodes["spark-2"] = replace(nodes["spark-2"], desired=record(1, "stopped"))
    state, decision, _ = run(world, [at(world, 0.0, nodes=nodes)])
    assert (state, decision) == (State.STOPPED, Nothing())


def test_another_profile_is_left_alone() -> None:
    world = GangWorld(1)
    other = record(1, "serving").model_copy(update={"profile": "q"})
    nodes = {name: replace(node, desired=other) for name, node in world.look().nodes.items()}
    assert run(world, [at(world, 0.0, nodes=nodes)])[:2] == (State.FOREIGN, Nothing())


def test_after_a_reboot_of_all_nodes_nothing_is_there_and_it_is_started() -> None:
    world = GangWorld(1)
    nodes = {name: replace(node, rank=None) for name, node in world.look().nodes.items()}
    looks = [at(world, at_s, nodes=nodes, engine=None) for at_s in (0.0, 5.0)]
    state, decision, _ = run(world, looks)
    assert state is State.DOWN
    assert isinstance(decision, Revive)
    assert decision.fresh


def test_a_boot_whose_controller_died_is_carried_on_not_restarted() -> None:
    world = GangWorld(1)
    looks = [at(world, at_s, boots=(BootSeen(1, proven=False),)) for at_s in (0.0, 10.0, 25.0)]
    state, decision, _ = run(world, looks)
    assert state is State.BOOTING
    assert isinstance(decision, Revive)
    assert not decision.fresh


def test_the_first_that_died_is_named_and_a_guards_own_reason_before_all() -> None:
    world = GangWorld(1)
    world.die("spark-3", "memory_floor: MemAvailable was 3 B", own=False)
    world.ranks["spark-3"].own = True
    nodes = {name: replace(node, boot_id="the same") for name, node in world.look().nodes.items()}
    state, decision, why = run(world, [at(world, at_s, nodes=nodes) for at_s in (0.0, 5.0)])
    assert state is State.DEAD
    assert isinstance(decision, Revive)
    assert why.startswith("memory floor on the shared host: spark-3: rank 2 ended: memory_floor")


def test_a_node_that_stays_silent_leaves_evidence_once_and_a_flap_none() -> None:
    world = GangWorld(1)
    nodes = {name: node for name, node in world.look().nodes.items() if name != "spark-2"}
    quiet = [at(world, at_s, nodes=nodes, silent={"spark-2": "no answer"}) for at_s in range(0, 95, 5)]
    memory, kept = Memory(), []
    for look in quiet:
        memory, _, decision = gang.step(Policy(), TARGET, memory, look)
        kept += [look.at_s] if isinstance(decision, KeepEvidence) else []
    assert kept == [60]
    flapping = [look if number % 4 else at(world, look.at_s) for number, look in enumerate(quiet)]
    for look in flapping:
        memory, _, decision = gang.step(Policy(), TARGET, memory, look)
        assert not isinstance(decision, KeepEvidence)


def test_a_node_whose_rank_works_is_told_from_one_that_is_gone() -> None:
    """A canary is asked at once; until it ends nothing is claimed about the host."""

    def told(name: str, canary: CanarySeen | None) -> list[tuple[object, str]]:
        world, memory, found = GangWorld(1), Memory(), []
        first = CanarySeen(5.0, 5.5, True)
        left = {other: node for other, node in world.look().nodes.items() if other != name}
        looks = [at(world, 0.0), at(world, 10.0, canary=first)]
        looks += [at(world, 20.0 + more, nodes=left, silent={name: "gone"}, canary=first) for more in (0, 5)]
        looks += [replace(looks[-1], at_s=30.0 + more, canary=canary or first) for more in (0, 5)]
        for look in looks:
            memory, verdict, decision = gang.step(Policy(), TARGET, memory, look)
            found.append((decision, verdict.aspect))
        return found[2:]

    asked, out = (AskCanary(60.0), "unknown"), (Nothing(), "unknown")
    assert told("spark-2", None) == [asked, out, out, out]
    assert told("spark-2", CanarySeen(20.0, 21.0, True)) == [asked, out, *[(Nothing(), "network")] * 2]
    assert told("spark-2", CanarySeen(20.0, 29.0, False)) == [asked, out, *[(Nothing(), "host")] * 2]
    assert told("spark-1", None) == [(Nothing(), "head")] * 4


def test_the_page_states_the_bounds_of_the_shipped_policy() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")
    answering, worst = bounds(Policy(), LOOK_EVERY_S), bounds(Policy(), LOOK_EVERY_S + PULSE_TIMEOUT_S)
    for what in fields(answering):
        stated = f"| {getattr(answering, what.name):.0f} s | {getattr(worst, what.name):.0f} s |"
        assert stated in page, f"{what.name}: {stated}"


def test_memory_that_gets_short_is_said_and_nothing_is_done() -> None:
    world = GangWorld(1)
    nodes = dict(world.look().nodes)
    nodes["spark-2"] = replace(nodes["spark-2"], available_bytes=5 << 30, floor_bytes=4 << 30)
    state, decision, why = run(world, [at(world, 0.0, nodes=nodes)])
    assert state is State.PRESSURE
    assert isinstance(decision, AskCanary)
    assert "spark-2" in why
    assert "5.0 GiB" in why


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    world = GangWorld(1)
    used = {"spark-1": 1.0, "spark-2": 0.01, "spark-3": 0.98}
    nodes = {
        name: replace(node, rank=replace(node.rank, processors=used[name]))
        for name, node in world.look().nodes.items()
        if node.rank
    }
    failed = [CanarySeen(at_s, at_s + 60, False, why="timeout") for at_s in (0.0, 70.0)]
    looks = [at(world, end.ended_s, nodes=nodes, canary=end) for end in failed]
    state, _, why = run(world, [at(world, 0.0, nodes=nodes), *looks])
    assert state is State.HUNG
    assert "spark-2 stands still" in why


def test_a_slow_node_is_named_by_the_cool_gpus_of_the_others() -> None:
    world = GangWorld(1)
    power = {"spark-1": 21.0, "spark-2": 20.0, "spark-3": 61.0}
    nodes = {
        name: replace(node, gpu_utilization=96.0, gpu_power_w=power[name])
        for name, node in world.look().nodes.items()
    }
    ends = [CanarySeen(0.0, 0.4, True), CanarySeen(10.0, 29.0, True), CanarySeen(40.0, 59.0, True)]
    state, decision, why = run(world, [at(world, end.ended_s, nodes=nodes, canary=end) for end in ends])
    assert state is State.SLOW
    assert not isinstance(decision, Revive | GiveUp)
    assert "wait in NCCL for spark-3" in why


def test_a_long_prefill_is_busy_for_as_long_as_its_tokens_grow() -> None:
    world = GangWorld(1)
    looks = [at(world, 10.0 * tick, engine=EngineSeen(True, 1, 0, 5.0, 8192.0 * tick)) for tick in range(200)]
    lost = CanarySeen(100.0, 160.0, False, why="timeout")
    looks = [replace(look, canary=lost) if look.at_s >= 160 else look for look in looks]
    state, decision, why = run(world, looks)
    assert state is State.PREFILL
    assert not isinstance(decision, Revive | GiveUp)
    assert "no new token" in why


def test_two_failed_boots_open_the_breaker_even_for_a_new_monitor() -> None:
    world = GangWorld(1)
    world.die("spark-2", "engine_exit: 1")
    boots = (BootSeen(1, proven=True), BootSeen(2, proven=False), BootSeen(3, proven=False))
    state, decision, _ = run(world, [at(world, at_s, boots=boots) for at_s in (0.0, 5.0)])
    assert state is State.GIVEN_UP
    assert isinstance(decision, GiveUp)
    assert decision.why.startswith("2 boots failed")
