"""A seeded gang in virtual time: faults of every kind happen to it, the watch looks at it every few seconds and acts.

The truth is known here, so a decision can be held against it: a restart of a gang that works, a restart that nobody
wants, a loop of restarts and a dead gang that nobody notices are each a `Violation`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType

from orchestrator.model.facts import Desired
from orchestrator.watch import gang as production
from orchestrator.watch.gang import AskCanary, GiveUp, KeepEvidence, Nothing, Revive
from orchestrator.watch.policy import Memory, Policy, Target
from orchestrator.watch.seen import BootSeen, CanarySeen, EngineSeen, NodeSeen, RankSeen, Seen
from orchestrator.watch.verdict import State

NODES = ("spark-1", "spark-2", "spark-3")
TARGET = Target("d", "p", NODES)
TICK_S = 15.0
GIB = 1 << 30
NOTICED_S = 460.0
"""Pace of the canary, its bound, the time without a token, and the longest look, added up: see `Policy`."""
STOPPED_NOTICED_S = 45.0
"""A stopped process is seen without any canary: its time to be believed and two looks."""
FAULTS = (
    "kill rank",
    "kill guard",
    "stop rank",
    "silent hang",
    "ssh gone",
    "host gone",
    "flap",
    "garbage",
    "slow",
    "memory floor",
    "monitor restart",
    "lost canary",
    "person acts",
    "bad boots",
    "long prefill",
    "keeps dying",
)


@cache
def record(generation: int, state: str) -> Desired:
    """A desired record."""
    return Desired(deployment="d", generation=generation, state=state, profile="p")


class Violation(AssertionError):
    """A rule is broken."""


@dataclass
class Rank:
    """One rank as it is."""

    alive: bool = True
    guarded: bool = True
    stopped: bool = False
    ended: str = ""
    own: bool = False


@dataclass
class GangWorld:
    """The truth."""

    seed: int
    policy: Policy = field(default_factory=Policy)
    watch: ModuleType = production
    fault: str = ""
    now_s: float = 1000.0
    generation: int = 1
    wanted: str = "serving"
    ranks: dict[str, Rank] = field(default_factory=lambda: {name: Rank() for name in NODES})
    silent_until: dict[str, float] = field(default_factory=dict)
    held_until: float = 0.0
    hung: bool = False
    garbage: bool = False
    slow: bool = False
    bad_boots: float = 0.0
    lose_next: bool = False
    lost_s: float = 0.0
    keeps_dying: bool = False
    running: int = 0
    generated: float = 0.0
    prefilled: float = 0.0
    prefill_until: float = 0.0
    boots: list[BootSeen] = field(default_factory=lambda: [BootSeen(1, True)])
    memory: Memory = field(default_factory=Memory)
    canary: CanarySeen | None = None
    asked: tuple[float, float] | None = None
    broken_since: float | None = None
    broken_at: float | None = None
    noticeable_since: float | None = None
    stopped_since: float | None = None
    restarts: list[float] = field(default_factory=list)
    states: set[str] = field(default_factory=set)
    given_up: int = 0
    kept: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - a simulation, not a secret

    # the truth ----------------------------------------------------------------------------------------------

    @property
    def works(self) -> bool:
        """A token can go through all ranks."""
        return not self.hung and all(rank.alive and not rank.stopped for rank in self.ranks.values())

    @property
    def sound(self) -> bool:
        """Nothing about the gang calls for a restart."""
        guarded = all(rank.guarded for rank in self.ranks.values())
        return self.works and guarded and not self.garbage

    def silent(self) -> dict[str, str]:
        """Nodes that do not answer now."""
        return {name: "no answer" for name, until in self.silent_until.items() if until > self.now_s}

    # what happens -------------------------------------------------------------------------------------------

    def inject(self) -> None:
        """One fault of this seed's kind."""
        name = self.random.choice(NODES)
        match self.fault:
            case "kill rank":
                self.die(name, "engine_signal: 9")
            case "memory floor":
                self.die(name, "memory_floor: MemAvailable was 1 B", own=True)
            case "kill guard":
                self.ranks[name].guarded = False
            case "stop rank":
                self.ranks[name].stopped = True
            case "silent hang":
                self.hung = True
            case "ssh gone":
                self.silent_until[name] = self.now_s + self.random.uniform(5, 600)
            case "flap":
                self.silent_until[name] = self.now_s + self.random.uniform(1, 9)
            case "host gone":
                self.silent_until[name] = self.now_s + self.random.uniform(60, 600)
                self.die(name, "lost: the guard is gone without a word")
            case "garbage":
                self.garbage = True
            case "slow":
                self.slow = not self.slow
            case "monitor restart":
                self.memory, self.asked, self.canary = Memory(), None, None
                if self.random.random() < 0.3:
                    self.die(name, "engine_signal: 9")
            case "lost canary":
                # one by itself: two in a row are no accident
                self.lose_next = self.now_s - self.lost_s > 400
                self.lost_s = self.now_s if self.lose_next else self.lost_s
            case "bad boots":
                self.bad_boots = self.random.choice((0.5, 1.0))
                self.die(name, "engine_exit: 1")
            case "long prefill":
                self.running = 1
                self.prefill_until = self.now_s + self.random.uniform(300, 900)
            case "keeps dying":
                self.keeps_dying = True
            case "person acts":
                self.person()

    def person(self) -> None:
        """Somebody uses the command line, with or without a fault beside it."""
        self.wanted = self.random.choice(("stopped", "maintenance", "serving"))
        self.held_until = self.now_s + self.random.uniform(0, 60)
        if self.wanted == "stopped":
            for name in NODES:
                self.die(name, "stopped: SIGTERM received")
        elif self.wanted == "serving":
            self.boot(ok=True)
            if self.random.random() < 0.5:
                self.held_until += 300
                self.die(NODES[2], "engine_exit: 1")
        elif self.random.random() < 0.5:
            self.die(NODES[0], "engine_exit: 1")

    def die(self, name: str, why: str, *, own: bool = False) -> None:
        """One rank ends, and the gang follows."""
        for node, rank in self.ranks.items():
            if rank.alive:
                self.ranks[node] = Rank(
                    False, False, False, why if node == name else "engine_exit: peer", own
                )

    def boot(self, *, ok: bool) -> None:
        """The next generation, started whole."""
        self.generation += 1
        self.ranks = {name: Rank() for name in NODES}
        self.hung = self.garbage = False
        self.running = 0
        self.boots.append(BootSeen(self.generation, ok))
        if not ok:
            self.die(NODES[1], "engine_exit: 1")

    def live(self) -> None:
        """Requests come and go, tokens flow."""
        if self.keeps_dying and self.sound and self.random.random() < 0.2:
            self.die(self.random.choice(NODES), "engine_signal: 11")
        if self.now_s < self.prefill_until:
            self.prefilled += 8192 if self.works else 0
            return
        if self.running and self.random.random() < 0.2 and self.works:
            self.running = 0
        elif self.random.random() < 0.05:
            self.running = self.random.randint(1, 4)
        if self.running and self.works:
            self.generated += 50 * self.running
        if self.prefill_until and self.works:
            self.running, self.prefill_until = 0, 0.0

    # the watch ----------------------------------------------------------------------------------------------

    def look(self) -> Seen:
        """What the watch sees of the truth."""
        silent = self.silent()
        desired = record(self.generation, self.wanted)
        nodes = {
            name: NodeSeen(
                boot_id=f"boot-{name}",
                available_bytes=40 * GIB,
                floor_bytes=4 * GIB,
                holder="a person" if self.held_until > self.now_s else None,
                desired=desired,
                rank=RankSeen(
                    rank=number,
                    guarded=self.ranks[name].guarded,
                    processes=3 if self.ranks[name].alive else 0,
                    stopped=1 if self.ranks[name].stopped else 0,
                    phase="ready" if self.ranks[name].alive else "ended",
                    ended=self.ranks[name].ended,
                    ended_by_guard=self.ranks[name].own,
                ),
            )
            for number, name in enumerate(NODES)
            if name not in silent
        }
        head = self.ranks[NODES[0]].alive and NODES[0] not in silent
        engine = EngineSeen(True, self.running, 0, self.generated, self.prefilled) if head else None
        return Seen(self.now_s, nodes, silent, engine, self.canary, tuple(self.boots))

    def ask(self, timeout_s: float) -> None:
        """The canary is out; how it will end is known now."""
        seconds = timeout_s if self.lose_next else 30.0 if self.slow else 0.5
        self.asked = (self.now_s, self.now_s + min(timeout_s, seconds if self.works else timeout_s))

    def answer(self) -> None:
        """The canary comes back."""
        if self.asked is None or self.asked[1] > self.now_s:
            return
        asked_s, ended_s = self.asked
        busy = self.now_s < self.prefill_until
        answered = self.works and not busy and not self.lose_next
        answered = answered and NODES[0] not in self.silent()
        self.lose_next = False
        self.canary = CanarySeen(asked_s, ended_s, answered, not self.garbage, "" if answered else "timeout")
        self.generated += 2 if answered else 0
        self.asked = None

    def tick(self) -> None:
        """One look of the watch and what it does about it."""
        self.now_s += TICK_S
        self.live()
        self.answer()
        seen = self.look()
        self.memory, verdict, decision = self.watch.step(self.policy, TARGET, self.memory, seen)
        self.states.add(verdict.state.name)
        if verdict.state is not State.UNREACHABLE:
            self.kept = False
        match decision:
            case AskCanary(timeout_s=timeout_s):
                if self.asked is not None:
                    raise Violation("a second canary while one is out")
                self.ask(timeout_s)
            case Revive(fresh=fresh, why=why):
                self.allowed(seen, why)
                self.revive(fresh=fresh)
            case GiveUp(why=why):
                self.allowed(seen, why)
                self.give_up()
            case KeepEvidence():
                self.keep(seen)
            case Nothing():
                pass
        self.noticed()

    def keep(self, seen: Seen) -> None:
        """Evidence is kept once for each time that nodes are silent, and not for a flapping link."""
        if not seen.silent:
            raise Violation("evidence of silent nodes, and none is silent")
        if self.kept:
            raise Violation("the same silence is kept twice")
        self.kept = True

    def allowed(self, seen: Seen, why: str) -> None:
        """A restart only of what is broken, wanted, whole in reach, and nobody else's."""
        if self.sound:
            raise Violation(f"a gang that works is restarted: {why}")
        if self.wanted != "serving" or self.held_until > self.now_s:
            raise Violation(f"restart while {self.wanted}, lease held until {self.held_until}: {why}")
        if seen.silent:
            raise Violation(f"restart without {sorted(seen.silent)}: {why}")

    def revive(self, *, fresh: bool) -> None:
        """What the loop does with the decision: a boot takes minutes, and may fail."""
        if not fresh:
            raise Violation("no boot is left half done here")
        recent = [at_s for at_s in self.restarts if self.now_s - at_s < self.policy.window_s]
        if len(recent) >= self.policy.restarts_max:
            raise Violation(f"{len(recent)} restarts within the window")
        row = self.watch.failed_in_a_row(tuple(self.boots))
        if row >= 2:
            raise Violation(f"a restart after {row} failed boots")
        self.now_s += self.random.uniform(60, 700)
        self.restarts.append(self.now_s)
        self.asked = None
        self.boot(ok=self.random.random() >= self.bad_boots)
        self.memory = self.watch.revived(self.policy, self.memory, self.now_s)

    def give_up(self) -> None:
        """The breaker opens: it is written down as the wish, so it outlives the watch."""
        row = production.failed_in_a_row(tuple(self.boots))
        recent = [at_s for at_s in self.restarts if self.now_s - at_s < self.policy.window_s]
        if row < 2 and len(recent) < self.policy.restarts_max:
            raise Violation(f"given up after {row} failed boots and {len(recent)} restarts")
        self.wanted, self.given_up = "stopped", self.given_up + 1
        for name in NODES:
            self.ranks[name] = Rank(False, False, False, "stopped: SIGTERM received")

    def noticed(self) -> None:
        """What is broken, wanted and in reach must not stay so."""
        stopped = any(rank.stopped for rank in self.ranks.values())
        stuck = not self.sound and self.wanted == "serving" and not self.silent()
        if not stuck or self.held_until > self.now_s:
            self.noticeable_since = self.stopped_since = None
            return
        if stopped and self.stopped_since is None:
            self.stopped_since = self.now_s
        if self.noticeable_since is None:
            self.noticeable_since = self.now_s
        back_off_s = max(0.0, self.memory.not_before_s - self.noticeable_since)
        bound_s = NOTICED_S + back_off_s
        if self.stopped_since and self.now_s - self.stopped_since > STOPPED_NOTICED_S + back_off_s:
            raise Violation(f"a rank is stopped since {self.now_s - self.stopped_since:.0f} s")
        if self.now_s - self.noticeable_since > bound_s:
            raise Violation(f"broken for {self.now_s - self.noticeable_since:.0f} s and nobody acts")

    def heal(self) -> None:
        """No more faults; what is broken stays broken until somebody acts."""
        self.bad_boots = 0.0
        self.slow = self.keeps_dying = False
        self.silent_until.clear()
        self.held_until = self.prefill_until = 0.0


def live_through(seed: int, watch: ModuleType = production, policy: Policy | None = None) -> GangWorld:
    """An hour with faults of one kind, then none: it must end serving, or stopped by a person or by the breaker."""
    world = GangWorld(seed, policy or Policy(), watch, FAULTS[seed % len(FAULTS)])
    events = world.random.randint(1, 4)
    due = sorted(world.random.randrange(4, 60) for _ in range(events))
    for tick in range(90):
        if tick in due:
            world.inject()
        world.tick()
    world.heal()
    for _ in range(40):
        world.tick()
    if world.wanted == "serving" and not world.sound:
        raise Violation("does not settle")
    if world.fault in {"ssh gone", "flap", "slow", "long prefill", "lost canary"} and world.restarts:
        raise Violation(f"{world.fault} alone has led to {len(world.restarts)} restarts")
    return world


def with_policy(**changes: float) -> Policy:
    """The shipped policy with other bounds."""
    return replace(Policy(), **changes)
