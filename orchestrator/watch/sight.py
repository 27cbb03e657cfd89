"""From what the nodes' agents say to what the decision reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model.pulse import EnginePulse, Pulse, RankPulse
from orchestrator.watch.policy import Target
from orchestrator.watch.seen import BootSeen, CanarySeen, EngineSeen, NodeSeen, RankSeen, Seen, wanted


def seen(
    target: Target,
    at_s: float,
    pulses: Mapping[str, Pulse],
    silent: Mapping[str, str],
    *,
    before: Mapping[str, Pulse],
    own_holder: str = "",
    canary: CanarySeen | None = None,
    gpus: Mapping[str, tuple[float, float]] | None = None,
) -> Seen:
    """One moment.

    Args:
        at_s: monotonic seconds of the watch.
        before: the pulses of the last look, for what a rank's processes did since.
        own_holder: the watch's own name on a lease.
        gpus: utilization (percent) and power (W) of each node's GPU, where known.
    """
    nodes = {name: _node(pulse, own_holder, (gpus or {}).get(name)) for name, pulse in pulses.items()}
    desired = wanted(nodes, target.deployment)
    generation = desired.generation if desired else 0
    placed = {
        name: _with_ranks(node, pulses[name], before.get(name), generation, _number(target, name))
        for name, node in nodes.items()
    }
    boots = {
        boot.generation: BootSeen(boot.generation, _proven(pulses, boot.generation))
        for pulse in pulses.values()
        for boot in pulse.boots
    }
    head = pulses.get(target.nodes[0])
    engine = _engine(head.engine) if head and head.engine else None
    return Seen(at_s, placed, silent, engine, canary, tuple(boots.values()))


def _number(target: Target, name: str) -> int | None:
    return target.nodes.index(name) if name in target.nodes else None


def _proven(pulses: Mapping[str, Pulse], generation: int) -> bool:
    """Canary and smoke are written where rank 0 ran."""
    return any(
        boot.proven for pulse in pulses.values() for boot in pulse.boots if boot.generation == generation
    )


def _node(pulse: Pulse, own_holder: str, gpu: tuple[float, float] | None) -> NodeSeen:
    holder = pulse.lease.holder if pulse.lease else None
    return NodeSeen(
        boot_id=pulse.boot_id,
        available_bytes=pulse.available_bytes,
        holder=None if holder == own_holder else holder,
        desired=pulse.desired,
        gpu_utilization=gpu[0] if gpu else None,
        gpu_power_w=gpu[1] if gpu else None,
    )


def _with_ranks(
    node: NodeSeen, pulse: Pulse, before: Pulse | None, generation: int, number: int | None
) -> NodeSeen:
    found = _find(pulse, generation, number)
    older = tuple(sorted({rank.generation for rank in pulse.ranks if rank.processes} - {generation}))
    rank = None
    if found is not None:
        earlier = _find(before, generation, number) if before else None
        rank = RankSeen(
            rank=found.rank,
            guarded=found.guarded,
            processes=found.processes,
            stopped=found.stopped,
            phase=found.phase,
            ended=_ended(found),
            status_age_s=max(0.0, pulse.now_unix_s - (found.updated_unix_s or pulse.now_unix_s)),
            processors=_processors(pulse, found, before, earlier),
            ended_by_guard=found.ended_by_guard,
            last_log_unix_s=found.last_log_unix_s or 0.0,
        )
    return NodeSeen(
        boot_id=node.boot_id,
        available_bytes=node.available_bytes,
        floor_bytes=found.floor_bytes if found and found.guarded else None,
        holder=node.holder,
        desired=node.desired,
        rank=rank,
        older=older,
        gpu_utilization=node.gpu_utilization,
        gpu_power_w=node.gpu_power_w,
    )


def _find(pulse: Pulse, generation: int, number: int | None) -> RankPulse | None:
    for rank in pulse.ranks:
        if (rank.generation, rank.rank) == (generation, number):
            return rank
    return None


def _ended(rank: RankPulse) -> str:
    if rank.guarded or not rank.processes:
        return rank.ended
    return f"{rank.ended}; {rank.processes} processes of the engine still run without it"


def _processors(
    pulse: Pulse, rank: RankPulse, before: Pulse | None, earlier: RankPulse | None
) -> float | None:
    """Processors that were busy for this rank since the last look."""
    if before is None or earlier is None or before.boot_id != pulse.boot_id:
        return None
    passed_s = pulse.monotonic_s - before.monotonic_s
    used_s = rank.processor_s - earlier.processor_s
    return used_s / passed_s if passed_s > 0 and used_s >= 0 else None


def _engine(pulse: EnginePulse) -> EngineSeen | None:
    """None when the page does not answer: then nothing is known, which is not the same as nothing moving."""
    if pulse.error or not (pulse.gauges or pulse.counters):
        return None
    gauges, counters = pulse.gauges, pulse.counters
    return EngineSeen(
        ready=pulse.ready,
        running=round(gauges.get("num_running_reqs", 0.0)),
        queued=round(gauges.get("num_queue_reqs", 0.0)),
        generated=counters.get("generation_tokens_total", 0.0),
        prefilled=counters.get("realtime_tokens_total", 0.0) + gauges.get("num_used_tokens", 0.0),
    )
