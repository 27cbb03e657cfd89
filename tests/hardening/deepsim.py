"""The simulator's rougher sea: real fences, messages lost, late and twice, clocks that jump, disks that lie, machines
that are swapped, agents of another version, two controllers at once. Built on `tests/sim.py`.

`INVARIANTS` says what must hold whatever happens; each is checked where its function is called, and a broken one is a
`Violation` with its name. `docs/reliability.md` lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model.event import Event, to_json
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import Action, Failure, SetDesired
from orchestrator.plan.predict import after_action
from orchestrator.remote.node import Ask, Message, Progressed, Reply
from orchestrator.run import World
from tests.sim import ACTIONS, PACKAGE, Faults, SimWorld, Violation, fresh

JUMP_MAX_S = 40 * 365 * 86_400
"""A clock without a battery comes back in 1970, or in 2106."""


@dataclass
class Rough(Faults):
    """Probabilities, each for one request."""

    lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    clock_jumps: float = 0.0
    disk_lies: float = 0.0
    swapped: float = 0.0
    """Another machine, with another host key."""
    replaced: float = 0.0
    """Another machine with the old one's host key and an empty disk: only its machine id tells."""
    other_version: float = 0.0


@dataclass
class Lease:
    """Of one node: which channel has it, and the number of its holder."""

    channel: str = ""
    holder: str = ""
    fence: int = 0


@dataclass
class DeepWorld(SimWorld):
    """The truth about all nodes, who may act on them, and what is still under way."""

    leases: dict[str, Lease] = field(default_factory=dict)
    under_way: list[tuple[float, str, Ask, Action]] = field(default_factory=list)
    """(arrives, node, request, action): late messages and second copies."""
    offsets_s: dict[str, float] = field(default_factory=dict)
    swapped_until: dict[str, float] = field(default_factory=dict)
    lied: int = 0
    asks: int = 0
    crash_at: int = 0
    """The controller dies at this message: 1 is before the first request arrives, 2 before its answer does."""
    replace_at: int = 0
    """The node of this request is replaced by another machine."""
    faults: Rough = field(default_factory=Rough)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.leases = {name: Lease() for name in self.facts}

    def pass_time(self, seconds: float) -> None:
        """See `SimWorld`; what was under way arrives."""
        super().pass_time(seconds)
        due = [entry for entry in self.under_way if entry[0] <= self.time_s]
        self.under_way = [entry for entry in self.under_way if entry[0] > self.time_s]
        for _, name, request, action in due:
            if fenced(self, name, request):
                self.apply(name, action)

    async def sleep(self, seconds: float) -> None:
        """See `Clock`; whoever else runs gets its turn."""
        self.pass_time(seconds)
        await self.turn()

    async def turn(self) -> None:
        """Any number of turns for the others, by the seed."""
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(0)

    def apply(self, name: str, action: Action) -> None:
        """The action happens, if the invariants allow it."""
        self.check(name, action)
        before = self.facts[name]
        generation_never_goes_back(before.desired, action, name)
        self.facts[name] = after_action(before, action, self.facts)
        kind = type(action).__name__
        if kind == "StartPack":
            self.ready_at.pop((name, f"pack-{action.store[:16]}"), None)  # type: ignore[union-attr]
        if kind == "ProveCheckpoint":
            proof = self.facts[name].proof.model_copy(update={"blocks_sha256": "2" * 64})  # type: ignore[union-attr]
            self.facts[name] = self.facts[name].model_copy(update={"proof": proof})

    def heal(self) -> None:
        """No more faults; what was under way is gone."""
        self.faults, self.under_way, self.crash_at = Rough(), [], 0
        self.gone_until.clear()
        self.swapped_until.clear()


class Died(BaseException):
    """The controller was killed. No code of it catches this."""


# invariants -------------------------------------------------------------------------------------------------------


def fenced(world: DeepWorld, name: str, request: Ask) -> bool:
    """An action happens only under the fence of the lease that is held now: late and repeated ones are refused."""
    lease = world.leases[name]
    return bool(lease.channel) and request.fence == lease.fence


def generation_never_goes_back(desired: Any, action: Action, name: str) -> None:
    """The desired record of a deployment never goes back to an earlier generation."""
    if not isinstance(action, SetDesired) or desired is None or desired.deployment != action.deployment:
        return
    if action.generation < desired.generation:
        raise Violation(f"{name}: desired goes back from {desired.generation} to {action.generation}")


def serving_is_true(goal: Goal, facts: ClusterFacts) -> None:
    """When `up` says that it serves, every rank of one generation lives, with its own tables, tried by the canary."""
    name = goal.profile.name
    alive = [
        (here, rank)
        for here in facts.values()
        for rank in here.ranks
        if rank.alive and rank.deployment == name
    ]
    generations = {rank.generation for _, rank in alive}
    ranks = sorted(rank.rank for _, rank in alive)
    if len(generations) != 1 or ranks != list(range(goal.profile.parallel.tp)):
        raise Violation(f"said to serve with ranks {ranks} of generations {generations}")
    boot = facts[goal.head.name].boot(name, generations.pop())
    if (
        boot is None
        or not boot.canary
        or not boot.smoke
        or any(rank.proven_store is None for _, rank in alive)
    ):
        raise Violation("said to serve, and not every rank was proven")


def stopped_is_true(goal: Goal, facts: ClusterFacts) -> None:
    """When `stop` says that it is done, no rank of the deployment lives on any node that it reached."""
    alive = [here.node for here in facts.values() for rank in here.ranks if rank.alive]
    if alive:
        raise Violation(f"said to be stopped, and ranks live on {alive}")


def nobody_acts_on_a_swapped_machine(world: DeepWorld, name: str) -> None:
    """Another machine under a node's address gets no action: its host key or its machine id is not the known one."""
    if world.swapped_until.get(name, 0.0) > world.time_s:
        raise Violation(f"{name}: an action for a machine that was swapped")


INVARIANTS: dict[str, Callable[..., Any]] = {
    "one generation": SimWorld.check,
    "head last": SimWorld.check,
    "gate after the whole gang": SimWorld.check,
    "no rank against the desired record": SimWorld.check,
    "an end": SimWorld.pass_time,
    "fenced": fenced,
    "generation never goes back": generation_never_goes_back,
    "serving is true": serving_is_true,
    "stopped is true": stopped_is_true,
    "nobody acts on a swapped machine": nobody_acts_on_a_swapped_machine,
}
"""Name as in docs/reliability.md -> where it is checked."""


# nodes ------------------------------------------------------------------------------------------------------------


@dataclass
class DeepNode:
    """One node behind the seam, as one controller's channel sees it."""

    name: str
    world: DeepWorld
    channel: str

    async def ask(self, request: Ask, *, timeout_s: float) -> AsyncIterator[Message]:
        """See `Node.ask`."""
        world = self.world
        await world.turn()
        world.pass_time(world.random.uniform(0.01, 0.2))
        world.asks += 1
        last = world.asks * 2 == world.crash_at
        if world.asks * 2 - 1 == world.crash_at:
            raise Died
        async for message in self._answer(request, timeout_s):
            if isinstance(message, Reply) and last:
                raise Died
            yield message

    async def _answer(self, request: Ask, timeout_s: float) -> AsyncIterator[Message]:
        world, faults = self.world, self.world.faults
        if (failure := self._unreachable()) is not None:
            yield Reply({}, failure)
            return
        if world.chance(faults.lost):
            world.injected.append((self.name, f"{request.what} lost"))
            world.pass_time(timeout_s)
            yield Reply(
                {}, Failure(self.name, "timeout", f"{request.what}: no answer within {timeout_s:.0f} s")
            )
            return
        if world.chance(faults.other_version):
            world.injected.append((self.name, "answers as another version"))
            facts = {**world.facts[self.name].model_dump(mode="json"), "from_the_future": 1}
            del facts["engines"]
            unknown = Failure(self.name, "protocol", f"this agent does not know {request.what!r}")
            yield Reply(facts) if request.what == "facts" else Reply({}, unknown)
            return
        match request.what:
            case "facts":
                yield Reply(self._facts())
            case "lease":
                yield self._lease(str(request.args["holder"]))
            case "release":
                self._release()
                yield Reply({})
            case "rest":
                yield self._rest(request.args)
            case "offer":
                yield Progressed({"url": f"http://{request.args['address']}:1/", "token": "sim"})
                yield Reply({})
            case what if what in ACTIONS:
                yield self._act(request, timeout_s)
            case _:
                yield Reply({})

    def _unreachable(self) -> Failure | None:
        world = self.world
        if world.chance(world.faults.node_gone):
            world.gone_until[self.name] = world.time_s + world.random.uniform(1, 60)
        if world.chance(world.faults.swapped):
            world.swapped_until[self.name] = world.time_s + world.random.uniform(1, 60)
        if world.gone_until.get(self.name, 0.0) > world.time_s:
            world.injected.append((self.name, "gone"))
            self._release()
            return Failure(self.name, "unreachable", "the network is gone")
        if world.chance(world.faults.replaced) or world.asks == world.replace_at:
            world.injected.append((self.name, "replaced"))
            self._release()
            world.facts[self.name] = fresh(self.name, world.goal).model_copy(
                update={"machine_id": f"{world.random.getrandbits(64):x}"}
            )
            world.ready_at = {key: at for key, at in world.ready_at.items() if key[0] != self.name}
        if world.swapped_until.get(self.name, 0.0) > world.time_s:
            world.injected.append((self.name, "swapped"))
            self._release()
            return Failure(
                self.name, "refused", "the host key is not the pinned one: another machine answers there"
            )
        return None

    def _facts(self) -> dict[str, Any]:
        world = self.world
        if world.chance(world.faults.clock_jumps):
            world.injected.append((self.name, "clock jumped"))
            world.offsets_s[self.name] = world.random.uniform(-JUMP_MAX_S, JUMP_MAX_S)
        now = world.time_s + world.offsets_s.get(self.name, 0.0)
        return {**world.facts[self.name].model_dump(mode="json"), "now_unix_s": now}

    def _lease(self, holder: str) -> Reply:
        lease = self.world.leases[self.name]
        if lease.channel not in {"", self.channel}:
            return Reply({}, Failure(self.name, "refused", f"the lease is held by {lease.holder}"))
        if lease.channel == "":
            lease.channel, lease.holder, lease.fence = self.channel, holder, lease.fence + 1
        return Reply({"fence": lease.fence})

    def _release(self) -> None:
        lease = self.world.leases[self.name]
        if lease.channel == self.channel:
            lease.channel = lease.holder = ""

    def _rest(self, args: dict[str, Any]) -> Reply:
        here = self.world.facts[self.name]
        if here.desired is None or here.desired.deployment != args["deployment"]:
            return Reply({"changed": False})
        desired = here.desired.model_copy(update={"state": args["state"]})
        self.world.facts[self.name] = here.model_copy(update={"desired": desired})
        return Reply({"changed": True})

    def _act(self, request: Ask, timeout_s: float) -> Reply:
        world, faults = self.world, self.world.faults
        extra = {"data", "url", "token"}
        arguments = {key: value for key, value in request.args.items() if key not in extra}
        action = ACTIONS[request.what](**arguments)
        nobody_acts_on_a_swapped_machine(world, self.name)
        if not fenced(world, self.name, request):
            return Reply({}, Failure(self.name, "refused", "the lease is gone; run the verb again"))
        if (refusal := self._contradicts(action)) is not None:
            return Reply({}, refusal)
        world.pass_time(world.random.uniform(0.1, 5) * (20 if world.chance(faults.slow) else 1))
        if world.chance(faults.before):
            world.injected.append((self.name, f"{request.what} refused"))
            return Reply({}, Failure(self.name, "failed", f"{request.what}: injected before it began"))
        if world.chance(faults.late):
            world.injected.append((self.name, f"{request.what} late"))
            arrives = world.time_s + timeout_s + world.random.uniform(0, 120)
            world.under_way.append((arrives, self.name, request, action))
            world.pass_time(timeout_s)
            return Reply(
                {}, Failure(self.name, "timeout", f"{request.what}: no answer within {timeout_s:.0f} s")
            )
        if world.chance(faults.disk_lies):
            world.injected.append((self.name, f"{request.what} lied"))
            world.lied += 1
            return Reply({})
        if not fenced(world, self.name, request):  # the time that passed may have taken it away
            return Reply({}, Failure(self.name, "refused", "the lease is gone; run the verb again"))
        world.apply(self.name, action)
        if world.chance(faults.twice) and request.what not in {"StartRank", "OpenGate"}:
            world.injected.append((self.name, f"{request.what} twice"))
            arrives = world.time_s + world.random.uniform(0, 30)
            world.under_way.append((arrives, self.name, request, action))
        if world.chance(faults.after):
            world.injected.append((self.name, f"{request.what} reply lost"))
            return Reply({}, Failure(self.name, "unreachable", f"{request.what}: the answer was lost"))
        return Reply({})

    def _contradicts(self, action: Action) -> Failure | None:
        """What a real agent refuses by its own records (`node_agent/actions/desired.py`)."""
        desired = self.world.facts[self.name].desired
        match action:
            case SetDesired(deployment=deployment, generation=generation):
                if (
                    desired is not None
                    and desired.deployment == deployment
                    and desired.generation > generation
                ):
                    return Failure(
                        self.name, "failed", f"the desired record is at generation {desired.generation}"
                    )
            case _ if type(action).__name__ == "StartRank":
                wanted = (action.deployment, action.generation, "serving")  # type: ignore[union-attr]
                if desired is None or (desired.deployment, desired.generation, desired.state) != wanted:
                    return Failure(self.name, "failed", "the desired record says otherwise")
        return None

    async def close(self) -> None:
        """The channel ends, and its lease."""
        self._release()


def open_deep(sim: DeepWorld, holder: str) -> World:
    """The production loop's world for one controller."""

    def record(event: Event) -> None:
        sim.events.append(to_json(event, round(sim.time_s, 3)))

    return World(
        nodes={name: DeepNode(name, sim, holder) for name in sim.facts},
        cluster=sim.goal.cluster,
        emit=record,
        clock=sim,
        holder=holder,
        payloads={PACKAGE.digest: b"package"},
        poll_s=4.0,
    )


def deep(goal: Goal, seed: int, faults: Rough | None = None) -> DeepWorld:
    """A world in which nothing was ever done."""
    world = DeepWorld(goal, seed, faults=faults or Rough())
    world.facts = {node.name: fresh(node.name, goal) for node in goal.cluster.nodes}
    return world
