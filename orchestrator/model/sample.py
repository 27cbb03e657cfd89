"""What a node's agent streams while it is watched (docs/formats.md), and what else happens while watching.

Comes from the agent as JSON and is checked here; nothing in it is trusted. The second half, `Watched`, is the closed
set of things that the views fold beside the events of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from orchestrator.model.event import KINDS, Event, to_json
from orchestrator.model.facts import Desired, Phase
from orchestrator.model.finding import Finding
from orchestrator.model.frozen import Frozen
from orchestrator.model.plain import plain
from orchestrator.model.step import Failure

Short = Annotated[str, StringConstraints(max_length=512)]
Count = Annotated[int, Field(ge=0, le=2**63)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]


class MemoryNow(Frozen):
    """From /proc/meminfo and /proc/pressure/memory (percent of the last 10 s)."""

    total_bytes: Count
    available_bytes: Count
    free_bytes: Count = 0
    pressure_some: float | None = None
    pressure_full: float | None = None


class Processor(Frozen):
    """Seconds since boot, all processors together."""

    cpus: int = Field(ge=1)
    busy_s: Seconds
    idle_s: Seconds


class Space(Frozen):
    """The filesystem that holds sparkyard's folder."""

    total_bytes: Count
    free_bytes: Count


class Drive(Frozen):
    """A whole drive: reads since boot and the time they took, summed over reads in flight."""

    name: Short
    reads: Count
    read_s: Seconds


class Link(Frozen):
    """One rail end. Counters are the RDMA device's, in bytes; None without an RDMA device."""

    netdev: Short
    rdma: Short = ""
    cage: Short = ""
    half: Short = ""
    """PCI domain: which of the card's two x4 links."""
    addresses: tuple[Short, ...] = Field(default=(), max_length=8)
    up: bool | None = None
    """None: unreadable."""
    state: Short = ""
    rate_gbps: float | None = None
    sent_bytes: Count | None = None
    received_bytes: Count | None = None
    errors: Count = 0
    """Symbol, receive, sequence and timeout errors together."""
    congestion: Count = 0
    """Congestion notifications sent and handled."""
    carrier_changes: Count = 0


class GpuNow(Frozen):
    """A row of nvidia-smi; None is what it calls N/A."""

    sm_mhz: float | None = None
    sm_max_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization_percent: float | None = None
    pstate: Short | None = None


class EngramNow(Frozen):
    """Counters of one rank's Engram reader since it was opened."""

    batches: Count = 0
    rows_requested: Count = 0
    rows_unique: Count = 0
    cache_hits: Count = 0
    pages_read: Count = 0
    bytes_read: Count = 0
    errors: Count = 0
    read_s: Seconds = 0.0
    latency_bounds_us: tuple[Count, ...] = Field(default=(), max_length=64)
    latency: tuple[Count, ...] = Field(default=(), max_length=65)
    """Batches in each bucket (not cumulative); the last has no upper bound."""


class RankNow(Frozen):
    """One rank, as its guard describes it."""

    deployment: Short
    generation: int = Field(ge=0)
    rank: int = Field(ge=0)
    alive: bool
    phase: Phase
    phases: dict[Phase, Seconds] | None = None
    """Unix seconds of the first sight of each phase."""
    ended: Short = ""
    memory_floor_bytes: Count | None = None
    memory_low_water_bytes: Count | None = None
    memory_free_low_water_bytes: Count | None = None
    weights_bytes: Count | None = None
    kv_tokens: Count | None = None
    last_log_unix_s: Seconds | None = None
    updated_unix_s: Seconds | None = None
    engram: EngramNow | None = None


class JobNow(Frozen):
    """Long work on the node."""

    id: Short
    kind: Short
    state: Literal["running", "done", "failed", "lost"]
    done: int = 0
    total: int = 0
    unit: Short = ""
    error: Annotated[str, StringConstraints(max_length=4096)] = ""


class EngineNow(Frozen):
    """Rank 0's SGLang metrics page, reduced; `error` when it does not answer."""

    gauges: dict[Short, float] = Field(default_factory=dict, max_length=64)
    counters: dict[Short, float] = Field(default_factory=dict, max_length=64)
    ttft_bounds_s: tuple[float, ...] = Field(default=(), max_length=128)
    ttft: tuple[float, ...] = Field(default=(), max_length=129)
    """Cumulative counts of requests by time to first token, the last for all."""
    error: Short = ""


class RailProbe(Frozen):
    """What a load test once measured from this node through one rail."""

    unix_s: Seconds
    netdev: Short
    peer: Short
    gbps: float


class Probed(Frozen):
    """Results of load tests kept on the node; `busy_mhz` is the median GPU clock under load."""

    rails: tuple[RailProbe, ...] = Field(default=(), max_length=64)
    busy_mhz: float | None = None


class AgentCost(Frozen):
    """What watching costs on the node: processor seconds since the agent's start, resident memory."""

    cpu_s: Seconds
    resident_bytes: Count


class Sample(Frozen):
    """One tick of one node. What has a slower pace of its own is None when there is no news of it."""

    schema_: Literal["sparkyard/sample/v1"] = Field(alias="schema")
    number: Count
    unix_s: Seconds
    monotonic_s: Seconds
    boot_id: Short
    every_s: float = Field(gt=0)
    hardware: Literal["live", "recorded"]
    memory: MemoryNow
    processor: Processor
    disk: Space
    links: tuple[Link, ...] = Field(default=(), max_length=16)
    rails_w: dict[Short, float] = Field(default_factory=dict, max_length=40)
    drives: tuple[Drive, ...] = Field(default=(), max_length=8)
    ranks: tuple[RankNow, ...] = Field(default=(), max_length=8)
    jobs: tuple[JobNow, ...] = Field(default=(), max_length=8)
    desired: Desired | None = None
    agent: AgentCost
    probes: Probed | None = None
    gpu: GpuNow | None = None
    engine: EngineNow | None = None


@dataclass(frozen=True, slots=True)
class NodeSampled:
    """A sample arrived."""

    node: str
    sample: Sample


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """The stream of a node broke, or could not be opened."""

    node: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class FindingsSeen:
    """The checks ran; replaces what they said before."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class CanaryAnswered:
    """A short generation through all ranks: the only sign of life that counts."""

    deployment: str
    ok: bool
    seconds: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class GangRestarted:
    """The ranks are started again as a whole, by nobody's order but the watch's."""

    deployment: str
    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class BreakerMoved:
    """Too many restarts: open means that a person has to act."""

    deployment: str
    open: bool
    why: str


Watched = NodeSampled | NodeSilent | FindingsSeen | CanaryAnswered | GangRestarted | BreakerMoved
Happened = Event | Watched


def happened_json(happened: Happened, unix_s: float) -> dict[str, Any]:
    """One line of `events.jsonl`; events of a run as `event.to_json` writes them."""
    match happened:
        case NodeSampled(node=node, sample=sample):
            body: dict[str, Any] = {
                "node": node,
                "sample": sample.model_dump(mode="json", by_alias=True, exclude_none=True),
            }
        case NodeSilent(node=node, failure=failure):
            body = {"node": node, "failure": _failure_json(failure)}
        case FindingsSeen(findings=findings):
            body = {
                "findings": [finding.model_dump(mode="json", exclude_defaults=True) for finding in findings]
            }
        case CanaryAnswered(deployment=deployment, ok=ok, seconds=seconds, why=why):
            body = {"deployment": deployment, "ok": ok, "seconds": seconds, "why": why}
        case GangRestarted(deployment=deployment, generation=generation, why=why):
            body = {"deployment": deployment, "generation": generation, "why": why}
        case BreakerMoved(deployment=deployment, open=is_open, why=why):
            body = {"deployment": deployment, "open": is_open, "why": why}
        case _:
            return to_json(happened, unix_s)
    return {"schema": "sparkyard/event/v1", "unix_s": unix_s, "event": type(happened).__name__, **body}


def happened_from_json(line: Any) -> tuple[float, Happened]:
    """The reverse, of `events.jsonl` lines of any verb.

    Raises:
        ValueError: the line is not one of ours; the text says what is wrong with it.

    Its texts are made harmless: the file may come from somebody else.
    """
    if not isinstance(line, dict):
        raise ValueError(f"not an object: {str(line)[:80]}")
    line = plain(line)
    body = {key: value for key, value in line.items() if key not in {"schema", "unix_s", "event", "run"}}
    if line.get("schema") != "sparkyard/event/v1" or not isinstance(line.get("unix_s"), int | float):
        raise ValueError(f"not a sparkyard/event/v1 line: {str(line)[:80]}")
    kind = line.get("event")
    try:
        return float(line["unix_s"]), _read(kind, body)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{kind}: {error}") from None


def _read(kind: Any, body: dict[str, Any]) -> Happened:
    match kind:
        case "NodeSampled":
            return NodeSampled(str(body["node"]), Sample.model_validate(body["sample"]))
        case "NodeSilent":
            return NodeSilent(str(body["node"]), _failure(body["failure"]))
        case "FindingsSeen":
            return FindingsSeen(tuple(Finding.model_validate(finding) for finding in body["findings"]))
        case "CanaryAnswered":
            return CanaryAnswered(**body)
        case "GangRestarted":
            return GangRestarted(**body)
        case "BreakerMoved":
            return BreakerMoved(**body)
        case str() if kind in KINDS:
            return KINDS[kind](**{key: _value(key, value) for key, value in body.items()})
    raise ValueError(f"unknown event {kind!r}")


def _value(key: str, value: Any) -> Any:
    """JSON has lists and objects where the events have tuples and failures."""
    if key == "failure":
        return _failure(value)
    if key == "failures":
        return tuple(_failure(entry) for entry in value)
    if isinstance(value, list):
        return tuple(tuple(entry) if isinstance(entry, list) else entry for entry in value)
    return value


def _failure_json(failure: Failure) -> dict[str, Any]:
    return {
        "node": failure.node,
        "kind": failure.kind,
        "message": failure.message,
        "remedy": failure.remedy,
        "evidence": list(failure.evidence),
    }


def _failure(value: dict[str, Any]) -> Failure:
    return Failure(
        str(value["node"]),
        value["kind"],
        str(value["message"]),
        str(value.get("remedy", "")),
        tuple(str(line) for line in value.get("evidence", ())),
    )
