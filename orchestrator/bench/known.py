"""What the deployment's own facts say for a record: provenance, where load may come from, samples of nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.bench.record import FindingNote, Hardware, NodeSample, Provenance, hardware_name
from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Node
from orchestrator.model.facts import ClusterFacts, NodeFacts, RankFacts
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.frozen import identity
from orchestrator.model.goal import Goal
from orchestrator.model.hardware import GpuDevice
from orchestrator.model.hardware import Hardware as HardwareFacts
from orchestrator.model.profile import Profile
from orchestrator.model.sample import EngramNow, Sample

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
NATIVE_MODEL = "DeepSeek-V4.1-Flash"  # published as MXFP4 experts and FP8 dense; a repack has another name
CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Place:
    """Where load comes from and how that place reaches the API; `remark` says what that costs, if it costs."""

    node: str
    base_url: str
    remark: str = ""


def place(goal: Goal, wanted: str | None) -> Place:
    """The node that sends the load: `wanted`, else the last worker that reaches the API, else the head.

    Raises:
        ConfigError: `wanted` is no node, or cannot reach the API.
    """
    head, profile = goal.head, goal.profile
    port = goal.port(head, profile.ports.api)
    loopback = profile.ports.listen in LOOPBACK
    names = [node.name for node in goal.cluster.nodes]
    if wanted not in {None, CONTROLLER, *names}:
        raise ConfigError(
            [f"--load-from: no node is called {wanted!r}; known: {', '.join(names)}, {CONTROLLER}"]
        )
    here = f"http://127.0.0.1:{port}"
    one_host = goal.cluster.topology == "single-host"
    if not loopback:
        there = f"http://{head.fabric if profile.ports.listen == '0.0.0.0' else profile.ports.listen}:{port}"  # noqa: S104
        return Place(wanted or goal.ranked[-1].name, there)
    if one_host or (wanted == CONTROLLER and head.transport == "local"):
        return Place(wanted or goal.ranked[-1].name, here)
    if wanted not in {None, head.name}:
        raise ConfigError(
            [
                f"--load-from {wanted}: the API listens on {profile.ports.listen} of {head.name}; set ports.listen"
            ]
        )
    remark = f"load comes from the head, because the API listens on {profile.ports.listen} only: it shares rank 0's CPU"
    return Place(head.name, here, remark)


def newest_ranks(goal: Goal, facts: ClusterFacts) -> tuple[tuple[str, RankFacts], ...]:
    """(node, rank) of the newest generation of this deployment that lives, in rank order."""
    name = goal.profile.name
    alive = [
        (node, rank)
        for node, here in facts.items()
        for rank in here.ranks
        if rank.deployment == name and rank.alive
    ]
    newest = max((rank.generation for _node, rank in alive), default=0)
    return tuple(
        sorted(((n, r) for n, r in alive if r.generation == newest), key=lambda entry: entry[1].rank)
    )


def provenance(
    goal: Goal,
    facts: ClusterFacts,
    hardware: Mapping[str, HardwareFacts | None],
    findings: Sequence[Finding],
) -> Provenance:
    """Everything about the deployment that is known without asking the engine; the endpoint's words fill the rest."""
    profile = goal.profile
    ranks = newest_ranks(goal, facts)
    padding = profile.parallel.padding
    starts = [[node, rank.rank, rank.generation, rank.since_unix_s] for node, rank in ranks]
    engines = {digest for node, _rank in ranks for digest in facts[node].engines}
    return Provenance(
        model=profile.model.name,
        model_revision=profile.model.revision,
        engine=profile.engine.name,
        engine_version=profile.engine.version,
        image=engines.pop() if len(engines) == 1 else None,
        quantisation="native" if profile.model.name.endswith(NATIVE_MODEL) else None,
        tp=profile.parallel.tp,
        padding=f"heads {padding.num_attention_heads}, output groups {padding.o_groups}"
        if padding
        else "none",
        profile=profile.name,
        profile_sha256=identity(profile.model_dump(mode="json", by_alias=True)),
        rank_specs=tuple(rank.spec for _node, rank in ranks),
        deployment=profile.name,
        generation=ranks[0][1].generation if ranks else None,
        boot_id=identity(starts)[:12] if ranks else None,
        hardware=_hardware(goal, hardware),
        topology=goal.cluster.topology,
        firmware=tuple(
            _firmware(node, facts[node.name], hardware.get(node.name))
            for node in goal.ranked
            if node.name in facts
        ),
        findings=tuple(
            FindingNote(
                check=finding.check,
                where=" ".join(filter(None, (finding.node, finding.link))) or "cluster",
                severity=finding.severity,
                measured=finding.measured,
            )
            for finding in findings
            if not finding.ignored and finding.severity in {Severity.ERROR, Severity.WARNING}
        ),
    )


def _device(here: HardwareFacts | None) -> GpuDevice | None:
    gpu = here.facts.gpu if here is not None else None
    return gpu.value.devices[0] if gpu is not None and gpu.value is not None and gpu.value.devices else None


def _hardware(goal: Goal, seen: Mapping[str, HardwareFacts | None]) -> tuple[Hardware, ...]:
    """Kinds of nodes that run ranks. A node whose hardware facts are a recording computes on the machine's CPU."""
    names = []
    for node in goal.ranked:
        device = _device(seen.get(node.name))
        name = "CPU" if node.recorded is not None else (device.name if device is not None else None)
        names.append(hardware_name(name or "unknown"))
    return tuple(Hardware(name=name, count=names.count(name)) for name in dict.fromkeys(names))


def _firmware(node: Node, here: NodeFacts, hardware: HardwareFacts | None) -> str:
    device = _device(hardware) if node.recorded is None else None
    driver = f", driver {device.driver}" if device is not None else ""
    return f"{node.name}: kernel {here.host.kernel}{driver}"


def node_sample(node: str, now: Sample, first: Sample, profile: Profile) -> NodeSample:
    """One look of the watch as the record has it; what is a recording is left out.

    Args:
        node: its name.
        now: the sample.
        first: the first sample of this run, the beginning of the counters' differences.
        profile: whose ranks count.
    """
    rank = next((rank for rank in now.ranks if rank.deployment == profile.name and rank.alive), None)
    before = next((old for old in first.ranks if rank is not None and old.rank == rank.rank), None)
    live = now.hardware == "live"
    gpu = now.gpu if live else None
    links = now.links if live else ()
    received = [link.received_bytes for link in links if link.received_bytes is not None]
    sent = [link.sent_bytes for link in links if link.sent_bytes is not None]
    engram = rank.engram if rank is not None else None
    return NodeSample(
        node=node,
        rank=rank.rank if rank is not None else None,
        unix_s=now.unix_s,
        sm_clock_mhz=gpu.sm_mhz if gpu else None,
        power_w=gpu.power_w if gpu else None,
        temperature_c=gpu.temperature_c if gpu else None,
        memory_available_bytes=now.memory.available_bytes,
        link_rx_bytes=sum(received) if received else None,
        link_tx_bytes=sum(sent) if sent else None,
        engram_rows=engram.rows_requested if engram else None,
        engram_p99_s=engram_p99_s(engram, before.engram if before else None),
    )


def engram_p99_s(now: EngramNow | None, before: EngramNow | None) -> float | None:
    """Upper bound of the bucket that holds the 99th percentile of the batches since `before`; None without batches."""
    if now is None or not now.latency:
        return None
    old = (
        before.latency
        if before is not None and len(before.latency) == len(now.latency)
        else (0,) * len(now.latency)
    )
    counts = [new - earlier for new, earlier in zip(now.latency, old, strict=True)]
    total, seen = sum(counts), 0
    if total <= 0:
        return None
    for place_, count in enumerate(counts):
        seen += count
        if seen >= 0.99 * total:
            last = now.latency_bounds_us[min(place_, len(now.latency_bounds_us) - 1)]
            return last / 1e6
    return None
