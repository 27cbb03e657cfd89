"""The one sentence that matters, and what is behind it. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from orchestrator.model.facts import PHASES, Phase
from orchestrator.model.finding import Severity
from orchestrator.view.node import NodeView, RankView
from orchestrator.view.rates import median
from orchestrator.view.state import State, worst_first

Kind = Literal["serving", "degraded", "booting", "down", "stopped", "unknown"]
KINDS: tuple[Kind, ...] = ("serving", "degraded", "booting", "down", "stopped", "unknown")

RAIL_SLOW_GBPS = 85.0
"""A sound twin moves 92 to 112 Gb/s; one with the power latch 8 to 25 (public ib_write_bw reports)."""
CLOCK_LATCH_MHZ = 1400.0
"""Under load a sound GPU runs at 2,100 to 2,525 MHz, a latched one at 500 to 850 (public GB10 reports)."""
CLOCK_RATIO_LOW = 0.75
MARGIN_LOW_BYTES = 2 << 30
"""A collapse eats 2 to 4 GiB a second: less than this above the floor is one sample away from the guard's kill."""
SKEW_HIGH = 2.0
"""A rank whose Engram reads take twice as long as its peers' sets the pace of all."""
SKEW_MIN_S = 0.0005
"""Below half a millisecond a batch, a ratio between ranks is noise."""
KV_NEARLY_FULL = 0.95

SHARE: dict[Phase, float] = {
    "starting": 0.02,
    "joined": 0.08,
    "loading": 0.15,
    "kv": 0.75,
    "graphs": 0.85,
    "ready": 1.0,
    "draining": 1.0,
    "ended": 0.0,
}
"""How far a boot is when a phase begins. Loading takes most: 53 s to 7 min of published boots of 6 to 12 min."""


@dataclass(frozen=True, slots=True)
class Situation:
    """`reasons` are all that keeps it from being plainly served, the worst first."""

    kind: Kind
    sentence: str
    reasons: tuple[str, ...] = ()
    progress: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cable:
    """Two link ends in one subnet; `b` None when the other end is a switch or nobody."""

    a: tuple[str, str]
    b: tuple[str, str] | None
    subnet: str


def ranks(state: State) -> tuple[tuple[NodeView, RankView], ...]:
    """Ranks of the deployment's newest generation, in order, with their nodes."""
    found = [
        (node, rank)
        for node in state.nodes.values()
        for rank in node.ranks
        if rank.now.deployment == state.deployment
    ]
    newest = max((rank.now.generation for _, rank in found), default=0)
    kept = [(node, rank) for node, rank in found if rank.now.generation == newest]
    return tuple(sorted(kept, key=lambda pair: pair[1].now.rank))


def generation(state: State) -> int | None:
    """The newest generation that is known of."""
    found = [rank.now.generation for _, rank in ranks(state)]
    found += [
        node.sample.desired.generation
        for node in state.nodes.values()
        if node.sample is not None and node.sample.desired is not None
    ]
    return max(found, default=None)


def situation(state: State, now_unix_s: float) -> Situation:
    """What to tell first."""
    known = [node for node in state.nodes.values() if node.known(now_unix_s)]
    if not known:
        return Situation("unknown", "no node answers" if state.nodes else "nothing seen yet")
    here = ranks(state)
    wanted = {
        node.sample.desired.state
        for node in known
        if node.sample is not None and node.sample.desired is not None
    }
    alive = [(node, rank) for node, rank in here if rank.now.alive and node.known(now_unix_s)]
    tp = state.tp or len(here)
    if not alive and "serving" not in wanted:
        word = "in maintenance" if "maintenance" in wanted else "stopped"
        return Situation("stopped", word if wanted or here else "nothing is deployed")
    reasons = problems(state, now_unix_s)
    dead = [
        f"rank {rank.now.rank} on {node.name} ended: {rank.now.ended}"
        for node, rank in here
        if not rank.now.alive and not rank.now.ended.startswith("stopped")
    ]
    lost = [
        f"{node.name} does not answer, rank {rank.now.rank} with it"
        for node, rank in here
        if rank.now.alive and not node.known(now_unix_s)
    ]
    if dead or lost:
        return Situation("down", f"down: {(dead + lost)[0]}", (*dead, *lost, *reasons))
    if state.breaker_open:
        return Situation("down", f"down: circuit breaker open: {state.breaker_why}", tuple(reasons))
    if any(rank.now.phase == "draining" for _, rank in alive):
        return Situation("stopped", "draining: the ranks finish what they have", tuple(reasons))
    ready = [rank for _, rank in alive if rank.now.phase == "ready"]
    if tp and len(ready) == tp:
        if reasons:
            return Situation("degraded", f"degraded: {reasons[0]}", tuple(reasons))
        return Situation("serving", "serving")
    return _booting([rank for _, rank in alive], tp, reasons, now_unix_s)


def _booting(alive: list[RankView], tp: int, reasons: list[str], now_unix_s: float) -> Situation:
    if not alive:
        return Situation("down", "down: desired is serving, no rank runs", tuple(reasons))
    done = sum(SHARE[rank.now.phase] for rank in alive) / max(tp, len(alive))
    begun = [
        rank.now.phases["starting"] for rank in alive if rank.now.phases and "starting" in rank.now.phases
    ]
    eta = None
    if begun and done > SHARE["joined"]:
        eta = max(0.0, (now_unix_s - min(begun)) * (1.0 - done) / done)
    slowest = min(alive, key=lambda rank: PHASES.index(rank.now.phase))
    text = f"booting at {done:.0%}" + (f", about {_minutes(eta)} left" if eta is not None else "")
    text += f": {slowest.now.phase}" + (
        f", {tp - len(alive)} of {tp} ranks to start" if len(alive) < tp else ""
    )
    return Situation("booting", text, tuple(reasons), done, eta)


def problems(state: State, now_unix_s: float) -> list[str]:
    """Everything that is not as it should be, the worst first."""
    found: list[str] = []
    if state.breaker_open:
        found.append(f"circuit breaker open: {state.breaker_why}")
    if state.canary is not None and not state.canary.ok:
        found.append(f"the canary fails ({state.canary.in_a_row} in a row): {state.canary.why}")
    for node in state.nodes.values():
        if not node.known(now_unix_s):
            why = node.silent.message if node.silent else "no sample"
            found.append(f"{node.name} does not answer ({why})")
    for node in state.nodes.values():
        if node.known(now_unix_s):
            found += _of_node(node)
    for node_name, rank, ratio in skews(state):
        if ratio > SKEW_HIGH:
            found.append(f"{node_name}: Engram reads of rank {rank} take {ratio:.1f}× as long as its peers'")
    if state.engine is not None and (use := state.engine.kv_use) is not None and use > KV_NEARLY_FULL:
        found.append(f"KV cache {use:.0%} full")
    found += [
        f"{finding.node or 'cluster'}: {finding.measured}"
        for finding in worst_first(state.findings)
        if finding.severity is Severity.ERROR and not finding.ignored and not finding.because_of
    ]
    return found


def _of_node(node: NodeView) -> list[str]:
    found = []
    for cage, ups in cages(node).items():
        if ups and not all(ups):
            what = f"half of {cage} is down" if any(ups) else f"{cage} is down"
            found.append(f"{node.name} {what}")
    for netdev, gbps in slow_rails(node).items():
        found.append(f"{node.name} {netdev} at {gbps:.0f} Gb/s")
    clock = median(node.busy)
    if node.clock_ratio is not None and clock is not None:
        if clock < CLOCK_LATCH_MHZ:
            found.append(f"{node.name} GPU clock latched at {clock:.0f} MHz under load")
        elif node.clock_ratio < CLOCK_RATIO_LOW:
            found.append(f"{node.name} GPU clock at {node.clock_ratio:.0%} of its own best")
    if node.margin_bytes is not None and node.margin_bytes < MARGIN_LOW_BYTES:
        found.append(f"{node.name} {node.margin_bytes / 2**30:.1f} GiB above its memory floor")
    return found


def cages(node: NodeView) -> dict[str, tuple[bool, ...]]:
    """Cage → is each of its wanted halves up; what nobody could read is left out."""
    found: dict[str, tuple[bool, ...]] = {}
    for view in node.links:
        if view.wanted and view.link.up is not None:
            found[view.link.cage] = (*found.get(view.link.cage, ()), view.link.up)
    return found


def slow_rails(node: NodeView) -> dict[str, float]:
    """Network device → Gb/s, where the newest load test of that rail was too slow."""
    newest: dict[str, tuple[float, float]] = {}
    for probe in node.probed.rails if node.probed else ():
        newest[probe.netdev] = max(newest.get(probe.netdev, (0.0, 0.0)), (probe.unix_s, probe.gbps))
    return {netdev: gbps for netdev, (_, gbps) in newest.items() if gbps < RAIL_SLOW_GBPS}


def skews(state: State) -> list[tuple[str, int, float]]:
    """(node, rank, its mean batch time against the median of all ranks); nothing where that would be noise."""
    times = [
        (node.name, rank.now.rank, rank.batch_mean_s)
        for node, rank in ranks(state)
        if rank.batch_mean_s is not None
    ]
    middle = median([seconds for _, _, seconds in times])
    if len(times) < 2 or middle is None or middle <= 0:
        return []
    return [
        (name, rank, seconds / middle if seconds > SKEW_MIN_S else min(1.0, seconds / middle))
        for name, rank, seconds in times
    ]


def cables(state: State) -> tuple[Cable, ...]:
    """Which link ends share a subnet: two make a cable, more are a switch, one has lost its peer."""
    subnets: dict[str, list[tuple[str, str]]] = {}
    for node in state.nodes.values():
        for view in node.links:
            for address in view.link.addresses:
                if subnet := _subnet(address):
                    subnets.setdefault(subnet, []).append((node.name, view.link.netdev))
    found = []
    for subnet, ends in sorted(subnets.items()):
        if len(ends) == 2 and ends[0][0] != ends[1][0]:
            found.append(Cable(ends[0], ends[1], subnet))
        else:
            found += [Cable(end, None, subnet) for end in ends]
    return tuple(found)


def _subnet(address: str) -> str:
    try:
        interface = ipaddress.ip_interface(address)
    except ValueError:
        return ""
    return str(interface.network) if interface.version == 4 else ""


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 90 else f"{whole // 60} min {whole % 60:02} s"
