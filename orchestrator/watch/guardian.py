"""The watch over the gang: look, judge, act through the same loop as every verb. Holds the lease only while acting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, assert_never

from pydantic import ValidationError

from orchestrator import boots
from orchestrator.each import each
from orchestrator.errors import SparkyardError
from orchestrator.model.event import Said
from orchestrator.model.goal import Goal
from orchestrator.model.pulse import CanaryAnswer, Pulse
from orchestrator.model.sample import BreakerMoved, CanaryAnswered, GangRestarted, Happened
from orchestrator.plan import up
from orchestrator.remote.node import Ask, Reply, reply
from orchestrator.run import World, converge
from orchestrator.watch import gang
from orchestrator.watch.policy import Memory, Policy, Target
from orchestrator.watch.seen import CanarySeen, Seen, wanted
from orchestrator.watch.sight import seen
from orchestrator.watch.verdict import State, Verdict

PULSE_TIMEOUT_S = 15.0
"""A pulse takes a node 0.1 s, and the engine's metrics page 2 s at most."""
QUIET = frozenset({State.IDLE, State.BUSY, State.PREFILL})
"""These come and go; none of them is news."""
GOOD = QUIET | {State.STOPPED, State.MAINTENANCE, State.ACTING, State.BOOTING}


class Guardian:
    """Keeps one deployment serving for as long as its desired record says so."""

    def __init__(
        self,
        world: World,
        goal: Goal,
        emit: Callable[[Happened], None],
        save: Callable[[str], Awaitable[str]],
        policy: Policy | None = None,
        gpus: Callable[[], Mapping[str, tuple[float, float]]] = dict,
        *,
        acts: bool = True,
    ) -> None:
        """`save` keeps the evidence and says where; `gpus` gives utilization and power of each node's GPU.

        Without `acts` it looks, asks canaries and tells, and changes nothing.
        """
        self.policy = policy or Policy()
        self.verdict: Verdict | None = None
        self._world, self._goal, self._emit, self._save, self._gpus = world, goal, emit, save, gpus
        self._acts = acts
        self._target = Target(
            goal.profile.name, goal.profile.identity, tuple(node.name for node in goal.ranked)
        )
        self._memory = Memory()
        self._before: dict[str, Pulse] = {}
        self._canary: CanarySeen | None = None
        self._asking: asyncio.Task[None] | None = None

    async def run(self, every_s: float) -> None:
        """Until the world is stopping."""
        try:
            while not self._world.stopping():
                try:
                    await self.once()
                except SparkyardError as error:
                    self._say("error", f"{type(error).__name__}: {error}")
                await self._world.clock.sleep(every_s)
        finally:
            if self._asking is not None:
                self._asking.cancel()
                await asyncio.wait({self._asking})

    async def once(self) -> None:
        """One look, and what it calls for."""
        view = await self._look()
        self._memory, verdict, decision = gang.step(self.policy, self._target, self._memory, view)
        self._tell(verdict)
        match decision:
            case gang.Nothing():
                return
            case gang.AskCanary(timeout_s=timeout_s):
                generation = self._generation(view)
                self._asking = asyncio.create_task(self._ask(generation, timeout_s))
            case gang.Revive() | gang.GiveUp() if not self._acts:
                return
            case gang.KeepEvidence(why=why):
                self._say("note", f"evidence of the nodes that answer in {await self._save(why)}")
            case gang.Revive(fresh=fresh, why=why):
                await self._revive(self._generation(view), fresh=fresh, why=why)
            case gang.GiveUp(why=why):
                await self._give_up(why)
            case _:
                assert_never(decision)

    async def _look(self) -> Seen:
        nodes = self._world.nodes
        asked = Ask("pulse", {"deployment": self._target.deployment})
        replies = await each(nodes, lambda name: reply(nodes[name], asked, timeout_s=PULSE_TIMEOUT_S))
        pulses: dict[str, Pulse] = {}
        silent: dict[str, str] = {}
        for name, answer in replies.items():
            match _pulse(answer):
                case Pulse() as pulse:
                    pulses[name] = pulse
                case str() as why:
                    silent[name] = why
        view = seen(
            self._target,
            self._world.clock.now(),
            pulses,
            silent,
            before=self._before,
            own_holder=self._world.holder,
            canary=self._canary,
            gpus=self._gpus(),
        )
        self._before = pulses
        return view

    def _generation(self, view: Seen) -> int:
        desired = wanted(view.nodes, self._target.deployment)
        return desired.generation if desired else 0

    async def _ask(self, generation: int, timeout_s: float) -> None:
        """One canary through the head's own loopback; how it ended is seen at the next look."""
        profile, head = self._goal.profile, self._goal.head
        args = {
            "deployment": profile.name,
            "generation": generation,
            "port": self._goal.port(head, profile.ports.api),
            "model": profile.model.served_name,
            "timeout_s": timeout_s,
            "key_file": profile.ports.api_key_file,
        }
        asked_s = self._world.clock.now()
        answer = await reply(
            self._world.nodes[head.name], Ask("canary", args), timeout_s=timeout_s + PULSE_TIMEOUT_S
        )
        ended_s = self._world.clock.now()
        found = _canary(answer)
        right = not isinstance(found, CanaryAnswer) or found.right is not False
        why = found if isinstance(found, str) else "" if right else f"answered {found.text!r}"
        self._canary = CanarySeen(asked_s, ended_s, isinstance(found, CanaryAnswer), right, why)
        self._emit(CanaryAnswered(profile.name, self._canary.answered and right, ended_s - asked_s, why))

    async def _revive(self, generation: int, *, fresh: bool, why: str) -> None:
        """Evidence first, then the loop: what ran is ended, what is missing is made good, the next gang is started."""
        if fresh:
            self._say("error", f"restart: {why}; evidence in {await self._save(why)}")
            self._emit(GangRestarted(self._target.deployment, generation + 1, why))
        else:
            self._say("warning", f"carrying on with generation {generation}: {why}")
        outcome = await converge(self._world, up.up(self._goal, restart=fresh, by_watch=True))
        if not outcome.leased:
            self._say("warning", f"not restarted: {outcome.failures[0].message}")
            return
        self._memory = gang.revived(self.policy, self._memory, self._world.clock.now())
        if outcome.interrupted:
            return
        if outcome.failures:
            said = "; ".join(f"{failure.node}: {failure.message}" for failure in outcome.failures[:4])
            self._say("error", f"it does not serve: {said}; evidence in {await self._save(said)}")
            await converge(self._world, up.clear(self._goal))
        else:
            self._say("note", "it serves again")
            await boots.record(self._world, self._goal, outcome.facts)

    async def _give_up(self, why: str) -> None:
        self._say("error", f"given up: {why}; evidence in {await self._save(why)}")
        outcome = await converge(self._world, up.abandon(self._goal, f"given up by the watch: {why}"))
        if outcome.leased:
            self._emit(BreakerMoved(self._target.deployment, open=True, why=why))
        for failure in outcome.failures:
            self._say("error", f"{failure.node}: {failure.message}")

    def _tell(self, verdict: Verdict) -> None:
        """A change of state is news; so is another reason, unless it is only another number of seconds."""
        before, self.verdict = self.verdict, verdict
        known = (before.state, before.nodes, before.aspect) if before is not None else None
        if known == (verdict.state, verdict.nodes, verdict.aspect):
            return
        if before is not None and before.state in QUIET and verdict.state in QUIET:
            return
        self._say("note" if verdict.state in GOOD else "warning", f"gang: {verdict.state}: {verdict.why}")

    def _say(self, level: str, text: str) -> None:
        self._emit(Said(level, text))


def with_canary(policy: Policy, pace_s: float | None, bound_s: float | None) -> Policy:
    """The policy with another pace or bound of the canary."""
    changes: dict[str, Any] = {}
    if pace_s is not None:
        changes["canary_pace_s"] = pace_s
    if bound_s is not None:
        changes |= {"canary_s": bound_s, "hang_s": bound_s}
    return replace(policy, **changes)


def _pulse(answer: Reply) -> Pulse | str:
    """The pulse, or why there is none."""
    if answer.failure is not None:
        return answer.failure.message
    try:
        return Pulse.model_validate(answer.value)
    except ValidationError as error:
        fault = error.errors()[0]
        return f"its pulse is not usable: {'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"


def _canary(answer: Reply) -> CanaryAnswer | str:
    if answer.failure is not None:
        return answer.failure.message
    try:
        return CanaryAnswer.model_validate(answer.value)
    except ValidationError as error:
        return f"not an answer: {error.errors()[0]['msg']}"
