"""The memory ledger: what one boot takes on every rank, line by line, judged before the boot. Pure.

No line is fitted to a published total; a difference to one is shown beside it. What is not known is a line of its own,
with its uncertainty. The verdict is `tight` when the margin is smaller than the sum of the uncertainties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.model.profile import Profile
from orchestrator.plan.geometry import Geometry
from orchestrator.plan.settings import Sizes, sizes
from orchestrator.plan.tensors import Shape, Weights

GIB = 1 << 30
GB = 10**9
GB10_BYTES = round(121.7 * GIB)
"""Unified memory that a DGX Spark shows (many fleets)."""
KV_TOKEN_BYTES = 1670.75
"""KV bytes a token and rank, replicated over the ranks (SGLang's own line `DSV4 memory calculation:`)."""
SWA_REQUEST_BYTES = round(0.34 * GB / 4)
"""Fixed sliding-window pool a request: 0.34 GB with 4 requests at TP3, 0.67 GB with 8 at TP4."""
TRANSIENT_BYTES = 14
"""Peak of a prefill step a (chunk token x prefix token), measured on a TP4 fleet."""
ROPE_TABLES = 2
"""SGLang 0.5.23 keeps two tables of rotations for all positions (`precompute_freqs_cis`, cache of 2)."""
WORKSPACE_BYTES = 384 << 20
"""Default of SGLANG_FLASHINFER_WORKSPACE_SIZE in SGLang 0.5.23."""
NCCL_COMMUNICATORS = 2
"""SGLang makes a torch group and a pynccl communicator over the same ranks."""
NCCL_COMMUNICATOR_BYTES = 34_210_180 + 1_179_652
"""Of each communicator: pool of proxy operations in shared memory, work queues (docs/nccl.md)."""
NCCL_CONNECTION_EXTRA_BYTES = 8192
"""Head and tail of a connection beside its three buffers (docs/nccl.md)."""
PINNED_BLOCK_BYTES = 2 << 20
"""CUDA gives a smaller pinned allocation a block of its own of this size (docs/nccl.md)."""

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, slots=True)
class Line:
    """One use of memory. `source` says where the figure is from."""

    name: str
    bytes: int
    uncertainty_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class RankLedger:
    """One rank's memory."""

    rank: int
    node: str
    total_bytes: int
    lines: tuple[Line, ...]

    @property
    def margin_bytes(self) -> int:
        """What is left; negative when it does not fit."""
        return self.total_bytes - sum(line.bytes for line in self.lines)

    @property
    def uncertainty_bytes(self) -> int:
        """Sum of the lines' uncertainties."""
        return sum(line.uncertainty_bytes for line in self.lines)

    @property
    def verdict(self) -> Verdict:
        """Whether this rank fits."""
        if self.margin_bytes < 0:
            return "does not fit"
        return "tight" if self.margin_bytes < self.uncertainty_bytes else "fits"


@dataclass(frozen=True, slots=True)
class Place:
    """A node as the ledger sees it. `used_bytes` is what the node needs without us, None when it was not looked up."""

    name: str
    total_bytes: int = GB10_BYTES
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """All ranks."""

    ranks: tuple[RankLedger, ...]
    refusals: tuple[str, ...]
    """Combinations that are refused whatever the margin says, each with its arithmetic."""
    remedies: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst rank's verdict; a refusal counts as not fitting."""
        verdicts = {rank.verdict for rank in self.ranks}
        if self.refusals or "does not fit" in verdicts:
            return "does not fit"
        return "tight" if "tight" in verdicts else "fits"

    @property
    def tightest(self) -> RankLedger:
        """The rank with the smallest margin."""
        return min(self.ranks, key=lambda rank: rank.margin_bytes)


def padded_shape(profile: Profile, model: Geometry) -> Shape:
    """The head axis of the profile's padding: real groups, slots, ranks."""
    padding = profile.parallel.padding
    return Shape(model.o_groups, padding.o_groups if padding else model.o_groups, profile.parallel.tp)


def lines(
    profile: Profile,
    model: Geometry,
    held: Weights,
    unlisted_bytes: int,
    place: Place,
    rank: int,
    corrections: Mapping[str, int] | None = None,
) -> tuple[Line, ...]:
    """Every use of memory of one rank. `unlisted_bytes` are checkpoint bytes that no header explains.

    `corrections` are bytes of lines that an earlier boot of this profile measured, by name; they replace the estimate.
    """
    asked = sizes(profile)
    found = [
        _system(place),
        *_weights(held, unlisted_bytes),
        Line(
            "rope tables", ROPE_TABLES * model.positions * model.rope_dim // 2 * 8, 0, "SGLang 0.5.23 source"
        ),
        *_pool(asked),
        _transient(asked),
        Line(
            "kernel workspace", WORKSPACE_BYTES, 0, "SGLang 0.5.23 source (SGLANG_FLASHINFER_WORKSPACE_SIZE)"
        ),
        Line("CUDA graphs", GIB, 3 * GIB // 4, "unknown for this model; SGLang reports it after a boot"),
        _nccl(asked, profile.parallel.tp),
        Line(
            "CUDA context, kernels and engine processes",
            round(5.6 * GIB),
            2 * GIB,
            "reported 5.6 GiB outside the weights on another GB10 stack; corrected by the first boot",
        ),
        *_head(rank),
        Line("page cache left to the node", GIB // 2, GIB // 4, "the tables are read around the page cache"),
        Line("floor of the guard", profile.memory.floor_bytes or 0, 0, "memory.floor_bytes"),
    ]
    measured = corrections or {}
    return tuple(
        Line(line.name, measured[line.name], 0, "measured at an earlier boot")
        if line.name in measured
        else line
        for line in found
    )


def _system(place: Place) -> Line:
    if place.used_bytes is not None:
        return Line(
            "operating system and other programs", place.used_bytes, GIB // 2, "looked up on the node"
        )
    return Line(
        "operating system and other programs",
        round(5.3 * GIB),
        round(0.6 * GIB),
        "idle Sparks show 115.8 to 117 of 121.7 GiB available",
    )


def _weights(held: Weights, unlisted_bytes: int) -> list[Line]:
    found = [
        Line(
            f"weights: {part.part}",
            part.bytes,
            0,
            "every rank has all of it" if part.replicated else "split over the ranks",
        )
        for part in held.parts
        if part.bytes
    ]
    unknown = unlisted_bytes + held.unknown_bytes
    if unknown:
        found.append(
            Line(
                "weights: unknown",
                unknown,
                0,
                f"{sum(kind.count for kind in held.unknown)} tensors without a rule and {unlisted_bytes} B that "
                "no header shows; taken as held by every rank (vision is)",
            )
        )
    return found


def _pool(asked: Sizes) -> list[Line]:
    tokens = asked.pool_tokens or 0
    pinned = f"{tokens} tokens x {KV_TOKEN_BYTES} B"
    return [
        Line(
            "KV pool",
            round(tokens * KV_TOKEN_BYTES),
            0,
            pinned if tokens else "not pinned: takes what is left",
        ),
        Line(
            "sliding-window pool",
            asked.requests * SWA_REQUEST_BYTES,
            asked.requests * SWA_REQUEST_BYTES // 4,
            f"{asked.requests} requests x {SWA_REQUEST_BYTES} B, from two published pools",
        ),
    ]


def transient_bytes(chunk_tokens: int, prefix_tokens: int) -> int:
    """Peak of one prefill step."""
    return TRANSIENT_BYTES * chunk_tokens * prefix_tokens


def _transient(asked: Sizes) -> Line:
    peak = transient_bytes(asked.chunk_tokens, asked.context_tokens)
    return Line(
        "prefill transient",
        peak,
        peak // 10,
        f"{TRANSIENT_BYTES} B x chunk {asked.chunk_tokens} x context {asked.context_tokens}",
    )


def nccl_connections(asked: Sizes, tp: int) -> int:
    """Connections that hold buffers: one a channel, peer, direction and communicator."""
    return asked.nccl_channels * (tp - 1) * 2 * NCCL_COMMUNICATORS


def nccl_connection_bytes(asked: Sizes) -> int:
    """Pinned memory of one connection. `NCCL_PROTO` leaves no buffer out: all three are allocated."""
    buffers = asked.nccl_buffer_bytes + asked.nccl_ll128_bytes + asked.nccl_ll_bytes
    return max(buffers + NCCL_CONNECTION_EXTRA_BYTES, PINNED_BLOCK_BYTES)


def _nccl(asked: Sizes, tp: int) -> Line:
    each = nccl_connection_bytes(asked)
    connections = nccl_connections(asked, tp)
    return Line(
        "NCCL pinned buffers",
        connections * each + NCCL_COMMUNICATORS * NCCL_COMMUNICATOR_BYTES,
        connections * each // 4,
        f"{connections} connections ({asked.nccl_channels} channels x {tp - 1} peers x 2 directions x "
        f"{NCCL_COMMUNICATORS} communicators) x {each} B + {NCCL_COMMUNICATORS} x {NCCL_COMMUNICATOR_BYTES} B",
    )


def _head(rank: int) -> list[Line]:
    if rank != 0:
        return []
    return [
        Line("API, tokenizer, detokenizer", round(1.3 * GIB), GIB // 4, "published for the head of a fleet")
    ]


def as_json(ledger: Ledger) -> dict[str, Any]:
    """The ledger as `plan serve --json` shows it."""
    return {
        "verdict": ledger.verdict,
        "ranks": [
            {
                "rank": rank.rank,
                "node": rank.node,
                "verdict": rank.verdict,
                "total_bytes": rank.total_bytes,
                "margin_bytes": rank.margin_bytes,
                "uncertainty_bytes": rank.uncertainty_bytes,
                "lines": [
                    {
                        "name": line.name,
                        "bytes": line.bytes,
                        "uncertainty_bytes": line.uncertainty_bytes,
                        "source": line.source,
                    }
                    for line in rank.lines
                ],
            }
            for rank in ledger.ranks
        ],
        "refusals": list(ledger.refusals),
        "remedies": list(ledger.remedies),
    }
