"""`sparkyard/bench/v1`: what was measured, of what, how, and under which conditions. Frozen; pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

from pydantic import Field

from orchestrator.model.frozen import Frozen, identity

SCHEMA = "sparkyard/bench/v1"


class Measure(StrEnum):
    """What a row measures."""

    DECODE = "decode"
    PREFILL = "prefill"
    NEEDLE = "needle"
    CHAT_BEHIND_PREFILL = "chat-behind-prefill"
    AGENT_CHAIN = "agent-chain"


class PromptKind(StrEnum):
    """What the prompts hold. `filler` and `unstated` occur in imported tables only: sparkyard never sends
    filler."""

    PROSE = "prose"
    CODE = "code"
    STRUCTURED = "structured"
    JSON = "json"
    COUNTING = "counting"
    REASONING = "reasoning"
    DOCUMENT = "document"
    FILLER = "filler"
    UNSTATED = "unstated"


class Cache(StrEnum):
    """State of the prefix cache for the measured requests."""

    COLD = "cold"
    WARM = "warm"
    UNSTATED = "unstated"


class Figure(Frozen):
    """One quantity over the rounds of a row: the median of the rounds, the lowest and the highest."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    rounds: int = Field(ge=1)

    @property
    def spread(self) -> float:
        """(high − low) / median; 0 for a single round, which says nothing about spread."""
        return (self.high - self.low) / self.median if self.median else 0.0


class Row(Frozen):
    """One cell of a table."""

    measure: Measure
    kind: PromptKind
    streams: int = Field(ge=1)
    cache: Cache
    prompt_tokens: int | None = None
    """Median over the requests, as the server counted them; None: not stated."""
    output_tokens: int | None = None
    """Median over the requests, as the server counted them; None: not stated."""
    output_limit_tokens: int | None = None
    requests: int = 0
    errors: int = 0
    tokens: tuple[tuple[int, int], ...] = ()
    """(prompt, completion) tokens of every request, in the order of rounds, streams, requests."""
    prompts_sha256: str | None = None
    """Digest over all prompts of the row: equal digests mean equal prompts."""
    client_cpu_share: float | None = None
    """CPU seconds per second that the load generator used, 1.0 = one core full."""
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()

    def figure(self, name: str) -> Figure | None:
        """The figure called ``name``; None when the row has none."""
        return next((figure for figure in self.figures if figure.name == name), None)


class Speculation(Frozen):
    """Speculative decoding; `accept_length` is tokens per verify step as measured during the run."""

    algorithm: str
    block_size: int | None = None
    accept_length: float | None = None


class Hardware(Frozen):
    """Nodes of one kind; `name` is normalised by `hardware_name`."""

    name: str
    count: int = Field(ge=1)


class FindingNote(Frozen):
    """A finding of the doctor at the time of the run."""

    check: str
    where: str
    severity: str
    measured: str


class NodeSample(Frozen):
    """One node at one moment of the run; None: this node does not tell."""

    node: str
    rank: int | None = None
    unix_s: float
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    memory_available_bytes: int | None = None
    link_rx_bytes: int | None = None
    """Sum over the fast links, counted since the link came up."""
    link_tx_bytes: int | None = None
    engram_rows: int | None = None
    """Rows read since the rank started."""
    engram_p99_s: float | None = None
    foreign_cores: float | None = None
    """Processor cores that something else used since the look before."""
    foreign_load: str | None = None
    """Names what else uses this node's processors; empty: looked, nothing to speak of."""


class NodeDuring(Frozen):
    """One node over the run: the extremes of its samples, counters as differences."""

    node: str
    rank: int | None = None
    samples: int
    sm_clock_low_mhz: float | None = None
    sm_clock_high_mhz: float | None = None
    power_high_w: float | None = None
    temperature_high_c: float | None = None
    memory_low_bytes: int | None = None
    link_rx_bytes: int | None = None
    link_tx_bytes: int | None = None
    engram_rows: int | None = None
    engram_p99_s: float | None = None
    foreign_cores: float | None = None
    """The most of any interval."""
    foreign_load: str | None = None
    """What it was in that interval."""


class Provenance(Frozen):
    """What was measured. None or empty: not stated, which `compare` treats as unlike anything."""

    model: str | None = None
    model_revision: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    image: str | None = None
    """Digest of the image, or identity of the engine's environment."""
    quantisation: str | None = None
    kv_format: str | None = None
    kv_tokens: int | None = None
    context_limit_tokens: int | None = None
    tp: int | None = None
    ep: int | None = None
    padding: str | None = None
    """Heads and output groups as padded, `none` when exact."""
    speculation: Speculation | Literal["off"] | None = None
    profile: str | None = None
    profile_sha256: str | None = None
    rank_specs: tuple[str, ...] = ()
    """Identity of each rank's spec, in rank order."""
    deployment: str | None = None
    generation: int | None = None
    boot_id: str | None = None
    """Names one start of the service: equal only when the same processes answered."""
    hardware: tuple[Hardware, ...] = ()
    topology: str | None = None
    firmware: tuple[str, ...] = ()
    """`node: BIOS, driver, kernel`, one a node."""
    findings: tuple[FindingNote, ...] = ()


class Method(Frozen):
    """How it was measured."""

    load_from: str
    """Node or machine that sent the requests."""
    endpoint: Literal["chat", "completions", "unstated"]
    rounds: int
    warm_up_rounds: int
    seed: int | None
    temperature: float | None
    ignore_eos: bool | None
    text: str = ""
    """Where the prompts' text comes from."""


class Slo(Frozen):
    """What a stream must get."""

    ttft_ms: float = Field(default=1000.0, gt=0)
    """Time to first token, the 95th percentile of a round."""
    stream_tok_s: float = Field(default=20.0, gt=0)
    """Tokens a second of a stream, the 5th percentile of a round."""


class Capacity(Frozen):
    """The largest number of streams within the SLO."""

    slo: Slo
    kind: PromptKind
    streams: int
    """0: not even one stream holds."""
    bounded_by: Literal["slo", "limit", "interrupted"]
    """`limit`: the largest number that was allowed still holds."""
    breaks_first: str = ""
    """Which limit fails first beyond `streams`, measured against allowed."""
    tried: tuple[tuple[int, bool], ...] = ()


class Share(Frozen):
    """Part of a step."""

    what: str
    seconds_per_step: float
    share: float


class RankSteps(Frozen):
    """Decode steps of one rank over the run."""

    rank: int
    steps: int
    step_s: float
    """Wall time of a step: the time in which the scheduler had work, over the steps."""
    parts: tuple[Share, ...]
    engram_rows_per_step: float | None = None
    engram_read_s_per_step: float | None = None
    accept_length: float | None = None


class Steps(Frozen):
    """Where a decode step's time goes, and what the slowest rank costs."""

    ranks: tuple[RankSteps, ...]
    slowest_rank: int | None = None
    slow_rank_cost: float | None = None
    """Share of a step's time that all ranks wait for the slowest one's Engram reads beyond the median
    rank's."""
    notes: tuple[str, ...] = ()


class Record(Frozen):
    """One run, or one published table."""

    schema_: Literal["sparkyard/bench/v1"] = Field(default="sparkyard/bench/v1", alias="schema")
    name: str
    origin: Literal["ours", "theirs"]
    source: str = ""
    """Where a published table stands; empty for our own runs."""
    started_unix_s: float = 0.0
    ended_unix_s: float = 0.0
    interrupted: bool = False
    """A person ended the run early; what was measured until then is here."""
    failure: str = ""
    """What ended the run early otherwise; what was measured until then is here."""
    method: Method
    provenance: Provenance
    rows: tuple[Row, ...] = ()
    capacity: Capacity | None = None
    steps: Steps | None = None
    nodes: tuple[NodeDuring, ...] = ()
    noisy: tuple[str, ...] = ()
    """Rows whose spread is too wide to rest a comparison on, and nodes on which something else worked meanwhile."""
    notes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """First twelve digits of the identity of the whole record."""
        return identity(self.model_dump(mode="json", by_alias=True))[:12]


# Normalised name ← what nvidia-smi, DMI and people call it. GB10 boxes of all makers share one chip and one
# power budget; what differs between them (firmware, disk) stands in `Provenance.firmware`.
_HARDWARE: tuple[tuple[str, str], ...] = (
    (
        r"\bgb10\b|dgx[ _-]?spark|\bspark(s)?\b|ascent gx10|\bgx10\b|zgx nano|edgexpert|pgx|ai top atom",
        "GB10",
    ),
    (r"rtx ?pro ?6000", "RTX PRO 6000"),
    (r"\bh200\b", "H200"),
    (r"\bh100\b", "H100"),
    (r"\bb200\b", "B200"),
    (r"^cpu$|lab\b", "CPU"),
)


def hardware_name(reported: str) -> str:
    """One name for one kind of hardware.

    >>> hardware_name("NVIDIA DGX Spark"), hardware_name("NVIDIA GB10"), hardware_name("ASUS Ascent GX10")
    ('GB10', 'GB10', 'GB10')
    """
    plain = " ".join(reported.split()).lower()
    for pattern, name in _HARDWARE:
        if re.search(pattern, plain):
            return name
    return re.sub(r"^(nvidia|amd|intel)(\(r\))? ", "", " ".join(reported.split()), flags=re.IGNORECASE)


# Normalised name ← what servers, cards and READMEs call a weight format. `native` is DeepSeek-V4.1-Flash as
# published: MXFP4 experts, FP8 dense.
_FORMATS: tuple[tuple[str, str], ...] = (
    (r"exl3|\b[2-6]\.[0-9]+ ?-?(bit|bpw)", "EXL3"),
    (r"nvfp4", "NVFP4"),
    (r"native|mxfp4|fp4.*fp8|fp8.*fp4", "native"),
)


def format_name(stated: str) -> str:
    """One name for one weight format; the bits of an EXL3 quantisation stay in it.

    >>> format_name("EXL3 3.5 bpw"), format_name("MXFP4 experts + FP8 dense")
    ('EXL3 3.5', 'native')
    """
    plain = " ".join(stated.split()).lower()
    for pattern, name in _FORMATS:
        if re.search(pattern, plain):
            bits = re.search(r"[2-6]\.[0-9]+", plain) if name == "EXL3" else None
            return f"{name} {bits.group()}" if bits else name
    return plain


def during(samples: tuple[NodeSample, ...]) -> tuple[NodeDuring, ...]:
    """Samples of the run folded to one entry a node, in order of first sight."""
    names = tuple(dict.fromkeys(sample.node for sample in samples))
    return tuple(_fold(tuple(sample for sample in samples if sample.node == name)) for name in names)


def _fold(samples: tuple[NodeSample, ...]) -> NodeDuring:
    def seen(field: str) -> list[float]:
        return [value for sample in samples if (value := getattr(sample, field)) is not None]

    def high(field: str) -> float | None:
        return max(seen(field), default=None)

    def grown(field: str) -> int | None:
        values = seen(field)
        # a counter that fell was reset by a restart: no difference can be stated
        return int(values[-1] - values[0]) if len(values) > 1 and values == sorted(values) else None

    loaded = [sample for sample in samples if sample.foreign_load is not None]
    worst = max(loaded, key=lambda sample: sample.foreign_cores or 0.0, default=None)
    memory = min(seen("memory_available_bytes"), default=None)
    return NodeDuring(
        node=samples[0].node,
        rank=samples[0].rank,
        samples=len(samples),
        sm_clock_low_mhz=min(seen("sm_clock_mhz"), default=None),
        sm_clock_high_mhz=high("sm_clock_mhz"),
        power_high_w=high("power_w"),
        temperature_high_c=high("temperature_c"),
        memory_low_bytes=None if memory is None else int(memory),
        link_rx_bytes=grown("link_rx_bytes"),
        link_tx_bytes=grown("link_tx_bytes"),
        engram_rows=grown("engram_rows"),
        engram_p99_s=high("engram_p99_s"),
        foreign_cores=worst.foreign_cores if worst else None,
        foreign_load=worst.foreign_load if worst else None,
    )
