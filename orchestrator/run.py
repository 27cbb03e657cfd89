"""The one loop: look, decide, do, look again. Every converging verb is this loop with its own `decide`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.each import each, look
from orchestrator.errors import ConformanceError, NoProgress, Undetermined
from orchestrator.holders import name_holders
from orchestrator.model.cluster import Cluster
from orchestrator.model.event import (
    Event,
    Looked,
    PredictionMissed,
    Progress,
    Said,
    StageStarted,
    StepDone,
    StepFailed,
    WaitDone,
)
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.step import (
    Blocked,
    Decision,
    Failure,
    FetchDone,
    MemoryBack,
    PackDone,
    RankAt,
    Stage,
    Step,
    Wait,
)
from orchestrator.perform import perform
from orchestrator.plan.fabric import LINK_FACTS
from orchestrator.plan.holds import holds, timed_out
from orchestrator.plan.measured import elapsed_and_expected_s
from orchestrator.plan.predict import after_stage, missed
from orchestrator.remote.node import Ask, Node, Reply, reply
from orchestrator.words import action as action_words
from orchestrator.words import condition as condition_words
from orchestrator.words import phase as phase_words

STAGES_MAX = 64
"""A life cycle has about twelve stages; more than this is a circle."""
GANG_ENDS_S = 2.0
"""From the first rank's end until the guards of the others have said theirs: under a second with gloo."""
UNREACHABLE_GRACE_S = 20.0
"""While waiting, a node may miss looks for this long (a reconnect) before it counts as gone."""
LEASE_TIMEOUT_S = 30.0
LEASE_RETRY_S = 1.0

Decide = Callable[[ClusterFacts], Decision]


class Clock(Protocol):
    """Time, so that a simulation can have its own."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...


class WallClock:
    """Real time."""

    def now(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(seconds)


@dataclass
class World:
    """What a run acts on."""

    nodes: Mapping[str, Node]
    cluster: Cluster
    emit: Callable[[Event], None]
    clock: Clock
    holder: str
    payloads: Mapping[str, bytes] = field(default_factory=dict)
    strict_conformance: bool = False
    """True in lab and tests: a missed prediction is an error, not only an event."""
    docker: bool = False
    """Whether a look asks the nodes' Docker engines too (runtime `docker`): that takes 0.2 s longer."""
    stopping: Callable[[], bool] = bool
    """True once the person has asked to stop after the running steps."""
    poll_s: float = 1.0
    """Between two looks while waiting: a look costs a node 0.05 s."""
    fences: dict[str, int] = field(default_factory=dict)

    def look_args(self) -> dict[str, dict[str, object]]:
        """Where each node shall look: the owner of the checkpoint at its own folder, the others through the share."""
        args: dict[str, dict[str, object]] = {name: {"docker": self.docker} for name in self.nodes}
        if self.cluster.topology != "single-host":
            for asked in args.values():
                asked["hardware"] = list(LINK_FACTS)
        if (checkpoint := self.cluster.checkpoint) is not None:
            args.setdefault(checkpoint.node, {})["checkpoint"] = checkpoint.path
        return args


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; no failures: the goal is reached."""

    failures: tuple[Failure, ...] = ()
    stages: tuple[Stage, ...] = ()
    facts: ClusterFacts = field(default_factory=dict)
    interrupted: bool = False
    leased: bool = True
    """False: another controller holds a lease, so nothing was done and nothing may be cleaned up."""


async def take_leases(world: World, names: tuple[str, ...]) -> tuple[Failure, ...]:
    """The lease of every node that answers; a refusal says who holds it."""
    replies = await each(
        names,
        lambda name: reply(
            world.nodes[name], Ask("lease", {"holder": world.holder}), timeout_s=LEASE_TIMEOUT_S
        ),
    )
    world.fences.update(
        {name: answer.value["fence"] for name, answer in replies.items() if answer.failure is None}
    )
    return tuple(answer.failure for answer in replies.values() if answer.failure is not None)


async def give_leases(world: World) -> None:
    """Give back what was taken."""
    names = tuple(world.fences)
    world.fences.clear()
    await each(names, lambda name: reply(world.nodes[name], Ask("release"), timeout_s=LEASE_TIMEOUT_S))


async def observe(world: World) -> ClusterFacts:
    """One look. Undetermined when no node answered."""
    facts, failures = await look(world.nodes, world.look_args())
    world.emit(Looked(tuple(sorted(facts)), failures))
    if not facts:
        raise Undetermined(
            "no node answered:\n" + "\n".join(f"  {failure.node}: {failure.message}" for failure in failures)
        )
    return facts


async def converge(world: World, decide: Decide, *, lease_wait_s: float = 0.0) -> Outcome:
    """Run until the goal is reached, something fails, or the person stops it.

    `lease_wait_s`: how long to wait for whoever else acts now.

    Raises:
        Undetermined: no node answers.
        NoProgress: `decide` asks again for steps that just succeeded.
        ConformanceError: a prediction was missed and the world is strict.
    """
    done: list[Stage] = []
    facts = await observe(world)
    end_s = world.clock.now() + lease_wait_s
    while refused := await take_leases(world, tuple(facts)):
        await give_leases(world)
        if world.clock.now() >= end_s or world.stopping():
            return Outcome(refused, (), facts, leased=False)
        await world.clock.sleep(LEASE_RETRY_S)
        facts = await observe(world)
    try:
        for _ in range(STAGES_MAX):
            decision = decide(facts)
            match decision:
                case None:
                    return Outcome((), tuple(done), facts)
                case Blocked(failures=failures):
                    return await _failed(world, decide, failures, tuple(done), facts)
                case Stage() as stage:
                    _refuse_repetition(done, stage)
            if world.stopping():
                return Outcome((), tuple(done), facts, interrupted=True)
            predicted = after_stage(facts, stage)
            failures = await _do_stage(world, stage)
            if world.stopping():
                return Outcome(failures, tuple(done), facts, interrupted=True)
            before, facts = facts, await observe(world)
            failures += swapped(before, facts)
            if failures:
                return await _failed(world, decide, failures, tuple(done), facts)
            _hold_to_the_truth(world, predicted, facts)
            done.append(stage)
        raise NoProgress(f"over {STAGES_MAX} stages without an end; the last was: {done[-1].title}")
    finally:
        await give_leases(world)


def swapped(before: ClusterFacts, now: ClusterFacts) -> tuple[Failure, ...]:
    """Nodes at whose address another machine answers than at the last look. Nothing more is planned for them."""
    return tuple(
        Failure(
            name,
            "refused",
            f"another machine answers: its machine id was {before[name].machine_id[:12]}, now {here.machine_id[:12]}",
            "check addresses and cables, then run the verb again: it begins from what is there",
        )
        for name, here in now.items()
        if name in before and before[name].machine_id != here.machine_id
    )


async def _failed(
    world: World, decide: Decide, failures: tuple[Failure, ...], done: tuple[Stage, ...], facts: ClusterFacts
) -> Outcome:
    """Look once more before reporting: a look is not one moment, and a gang that dies takes seconds to do so."""
    if any(rank.alive for here in facts.values() for rank in here.ranks):
        await world.clock.sleep(GANG_ENDS_S)
    later, _ = await look(world.nodes, world.look_args())
    if later:
        facts = later
        match decide(facts):
            case Blocked(failures=now):
                failures = tuple(dict.fromkeys((*now, *failures)))
            case _:
                pass
    return Outcome(failures, done, facts)


def dry_run(decide: Decide, facts: ClusterFacts) -> tuple[tuple[Stage, ...], tuple[Failure, ...]]:
    """The stages that `converge` would run from these facts, and what blocks it. Touches nothing."""
    stages: list[Stage] = []
    for _ in range(STAGES_MAX):
        match decide(facts):
            case None:
                return tuple(stages), ()
            case Blocked(failures=failures):
                return tuple(stages), failures
            case Stage() as stage:
                _refuse_repetition(stages, stage)
                facts = after_stage(facts, stage)
                stages.append(stage)
    raise NoProgress(f"the plan has over {STAGES_MAX} stages; the last is: {stages[-1].title}")


def _refuse_repetition(done: list[Stage], stage: Stage) -> None:
    if done and (again := set(stage.steps) & set(done[-1].steps)):
        step = next(iter(again))
        raise NoProgress(
            f"{step.node}: {action_words(step.action)!r} succeeded and is wanted again ({step.why}); "
            "this is a fault of sparkyard: please report it with events.jsonl"
        )


async def _do_stage(world: World, stage: Stage) -> tuple[Failure, ...]:
    world.emit(
        StageStarted(
            stage.title,
            tuple((step.node, action_words(step.action), step.why) for step in stage.steps),
            tuple((wait.node, condition_words(wait.until), wait.why) for wait in stage.waits),
        )
    )
    answers = await asyncio.gather(*(_do_step(world, step) for step in stage.steps))
    failures = tuple(answer.failure for answer in answers if answer.failure is not None)
    if failures:
        return failures
    return await _wait_for_all(world, stage.waits)


async def _do_step(world: World, step: Step) -> Reply:
    words, begin = action_words(step.action), world.clock.now()

    def progress(data: dict[str, Any]) -> None:
        if "done" in data:
            world.emit(_progress(step.node, words, data))

    answer = await perform(step, world.nodes, world.cluster, world.fences, world.payloads, progress)
    seconds = world.clock.now() - begin
    if answer.failure is None:
        world.emit(StepDone(step.node, words, seconds, answer.value))
        for warning in answer.value.get("warnings", ()):
            world.emit(Said("warning", f"{step.node}: {warning}"[:2000]))
    else:
        world.emit(StepFailed(step.node, words, seconds, answer.failure))
    return answer


def _progress(node: str, what: str, data: dict[str, Any]) -> Progress:
    def number(key: str) -> int:
        value = data.get(key)
        return value if isinstance(value, int) else 0

    return Progress(
        node, what, number("done"), number("total"), str(data.get("unit", "")), str(data.get("note", ""))
    )


async def _wait_for_all(world: World, waits: tuple[Wait, ...]) -> tuple[Failure, ...]:
    """All waits of a stage together. The first impossible one of a gang ends the others: they cannot hold any more."""
    begin, pending = world.clock.now(), list(waits)
    seen: dict[str, float] = dict.fromkeys(world.fences, begin)
    failures: list[Failure] = []
    while pending and not world.stopping():
        facts, missing = await look(world.nodes, world.look_args())
        now = world.clock.now()
        seen.update(dict.fromkeys(facts, now))
        failures.extend(
            failure
            for failure in missing
            if failure.node in seen and now - seen[failure.node] > UNREACHABLE_GRACE_S
        )
        for wait in list(pending):
            match holds(wait, facts):
                case True:
                    pending.remove(wait)
                    world.emit(WaitDone(wait.node, condition_words(wait.until), now - begin))
                case tuple() as impossible:
                    pending.remove(wait)
                    failures.extend(impossible)
                case False:
                    if now - begin > wait.deadline_s:
                        pending.remove(wait)
                        failures.append(await _too_late(world, wait, facts))
                    else:
                        _report(world, wait, facts)
        gang = any(isinstance(wait.until, RankAt) for wait in pending)
        if failures and (gang or any(failure.node not in facts for failure in failures)):
            break
        if pending:
            await world.clock.sleep(world.poll_s)
    return tuple(dict.fromkeys(failures))


async def _too_late(world: World, wait: Wait, facts: ClusterFacts) -> Failure:
    failure = timed_out(wait, facts)
    if isinstance(wait.until, MemoryBack) and wait.node in facts:
        return await name_holders(world.nodes, failure, wait.until.deployment)
    return failure


def _report(world: World, wait: Wait, facts: ClusterFacts) -> None:
    here = facts.get(wait.node)
    if here is None:
        return
    match wait.until:
        case PackDone(store=store):
            for job in here.jobs:
                if job.id == f"pack-{store[:16]}":
                    world.emit(Progress(wait.node, wait.why, job.done, job.total, job.unit))
        case FetchDone(spec=spec):
            for job in here.jobs:
                if job.spec == spec:
                    world.emit(Progress(wait.node, wait.why, job.done, job.total, job.unit))
        case RankAt(deployment=deployment, generation=generation, rank=rank):
            found = here.rank(deployment, rank, generation)
            if found is not None:
                seen = elapsed_and_expected_s(here, wait.until)
                elapsed_s, expected_s = seen or (0.0, 0.0)
                unit = "s" if seen else ""
                note = phase_words(found)
                world.emit(Progress(wait.node, wait.why, round(elapsed_s), round(expected_s), unit, note))
        case _:
            return


def _hold_to_the_truth(world: World, predicted: ClusterFacts, observed: ClusterFacts) -> None:
    found = [
        PredictionMissed(name, field, told[:2000], seen[:2000])
        for name, here in observed.items()
        if name in predicted
        for field, told, seen in missed(predicted[name], here)
    ]
    for event in found:
        world.emit(event)
    if found and world.strict_conformance:
        first = found[0]
        raise ConformanceError(
            f"{first.node}: {first.field} was predicted as {first.predicted}, observed {first.observed} "
            f"({len(found)} fields in all)"
        )
