"""Judges a plan's memory: the ledger, refusals with their arithmetic, and what would make it fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.model.profile import Profile
from orchestrator.plan.geometry import TOTAL_BYTES, Geometry, cited
from orchestrator.plan.ledger import (
    GB,
    GIB,
    KV_TOKEN_BYTES,
    TRANSIENT_BYTES,
    Ledger,
    Line,
    Place,
    RankLedger,
    as_json,
    lines,
    padded_shape,
    transient_bytes,
)
from orchestrator.plan.settings import Sizes, sizes, variable
from orchestrator.plan.tensors import Kind, Rule, Weights, kinds, weights

CHUNK_STEP = 128  # chunks are asked for in these steps
LL128_LINE = 120  # NVIDIA: LL128 buffers are a multiple of 120 bytes; other values hung or corrupted
KERNEL_HEADS = (
    8,
    16,
    32,
    64,
    128,
)  # FlashInfer 0.7.2, decode on SM12x; others are padded to 64 at every step
STATIC_RESERVE_BYTES = GB // 10  # SGLang keeps 0.1 GB out of the static share
PUBLISHED_WEIGHTS: Mapping[int, int] = {2: 145 * GIB, 3: 101 * GIB, 4: 77 * GIB}
"""Resident weights a rank, as fleets publish them for TP2, TP3 and TP4."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint: the tensors of its headers, and the bytes that its index states."""

    tensors: tuple[Kind, ...]
    total_bytes: int
    origin: str


def published_contents() -> Contents:
    """The published model, for plans without a checkpoint at hand."""
    return Contents(
        kinds(each.tensor for each in cited()),
        TOTAL_BYTES,
        "published geometry of DeepSeek-V4.1-Flash; no header was read",
    )


def judge(
    profile: Profile,
    places: Sequence[Place],
    contents: Contents,
    rules: tuple[Rule, ...],
    corrections: Mapping[int, Mapping[str, int]] | None = None,
) -> Ledger:
    """The ledger of one boot, rank 0 first. `corrections` are earlier measurements by rank and line."""
    model = Geometry()
    tables = profile.engram.mode == "memory"
    held = weights(contents.tensors, rules, padded_shape(profile, model), tables_in_memory=tables)
    unlisted = max(0, contents.total_bytes - held.listed_bytes)
    ranks = tuple(
        RankLedger(
            rank,
            place.name,
            place.total_bytes,
            lines(profile, model, held, unlisted, place, rank, (corrections or {}).get(rank)),
        )
        for rank, place in enumerate(places)
    )
    ledger = Ledger(ranks, tuple(_refusals(profile, held, ranks)), ())
    return replace(ledger, remedies=tuple(_remedies(profile, ledger)))


def _refusals(profile: Profile, held: Weights, ranks: tuple[RankLedger, ...]) -> list[str]:
    asked, tp = sizes(profile), profile.parallel.tp
    found = [
        f"tp {tp}: {problem}; no padding plan of this profile serves it" for problem in held.indivisible[:1]
    ]
    if profile.engram.mode == "memory":
        found.append(
            f"engram.mode memory: the tables take {_gib(_part(held, 'Engram tables'))} a rank; a Spark has to read "
            "them from its NVMe (engram.mode: disk)"
        )
    allocator = variable(profile, "PYTORCH_CUDA_ALLOC_CONF") or ""
    if "expandable_segments:true" in allocator.lower():
        found.append(
            "PYTORCH_CUDA_ALLOC_CONF expandable_segments:True: gave NaN logits on prefills over 64 query tokens; "
            "set expandable_segments:False"
        )
    if asked.nccl_ll128_bytes % LL128_LINE:
        found.append(
            f"NCCL_LL128_BUFFSIZE {asked.nccl_ll128_bytes} is not a multiple of {LL128_LINE}: NCCL hung or corrupted "
            f"data with such values; the next smaller is {asked.nccl_ll128_bytes // LL128_LINE * LL128_LINE}"
        )
    for rank in ranks:
        found += _transient_refusal(asked, rank)
        found += _pool_refusal(asked, rank)
    return found


def _transient_refusal(asked: Sizes, rank: RankLedger) -> list[str]:
    peak = transient_bytes(asked.chunk_tokens, asked.context_tokens)
    room = rank.margin_bytes + peak
    if rank.margin_bytes >= 0 or room < 0:
        return []
    why = (
        f"{rank.node} (rank {rank.rank}): chunk {asked.chunk_tokens} x context {asked.context_tokens} x "
        f"{TRANSIENT_BYTES} B = {_gib(peak)} at the end of a full prompt, but {_gib(room)} are left for it"
    )
    return [why]


def _pool_refusal(asked: Sizes, rank: RankLedger) -> list[str]:
    """SGLang gives the pool what the static fraction leaves; a larger pin is clamped silently or ends the boot."""
    if asked.pool_tokens is None:
        return []
    before = rank.total_bytes - _line(rank, "operating system").bytes
    loaded = sum(
        line.bytes
        for line in rank.lines
        if line.name.startswith(("weights:", "rope", "NCCL", "CUDA context"))
    )
    budget = before - loaded - round((1 - asked.static_fraction) * before) - STATIC_RESERVE_BYTES
    window = _line(rank, "sliding-window pool").bytes
    wanted = round(asked.pool_tokens * KV_TOKEN_BYTES) + window
    if wanted <= budget + rank.uncertainty_bytes:
        return []
    granted = max(0, int((budget - window) / KV_TOKEN_BYTES))
    why = (
        f"{rank.node} (rank {rank.rank}): a pool of {asked.pool_tokens} tokens takes {_gib(wanted)}, but the static "
        f"fraction {asked.static_fraction} leaves {_gib(budget)}: about {granted} tokens would be granted"
    )
    return [why]


def _remedies(profile: Profile, ledger: Ledger) -> list[str]:
    """What would make it fit, computed for the tightest rank."""
    rank, asked = ledger.tightest, sizes(profile)
    if rank.verdict == "fits" and not ledger.refusals:
        return []
    lacking = max(0, -rank.margin_bytes)
    per_chunk = transient_bytes(1, asked.context_tokens)
    peak = per_chunk * asked.chunk_tokens
    found = _padding_remedy(profile, ledger)
    room = rank.margin_bytes + peak
    if lacking and room > 0:
        chunk = room // per_chunk // CHUNK_STEP * CHUNK_STEP
        if chunk:
            found.append(f"--chunked-prefill-size {chunk} fits at context {asked.context_tokens}")
        context = room // (TRANSIENT_BYTES * asked.chunk_tokens) // CHUNK_STEP * CHUNK_STEP
        if context:
            found.append(f"--context-length {context} fits with chunk {asked.chunk_tokens}")
    elif lacking:
        found.append(
            f"{_gib(lacking)} are missing on {rank.node}: more than the prefill takes; only more ranks help "
            f"(tp {profile.parallel.tp + 1})"
        )
    else:
        wanted = rank.uncertainty_bytes - rank.margin_bytes
        chunk = max(0, (peak - wanted) // per_chunk // CHUNK_STEP * CHUNK_STEP)
        if chunk:
            found.append(f"--chunked-prefill-size {chunk} would leave more than the uncertainty")
        found.append("one boot records what the lines really take; the next plan uses those figures")
    return found


def _padding_remedy(profile: Profile, ledger: Ledger) -> list[str]:
    """The smallest padding that the ranks divide and whose heads a rank have a decode kernel of their own."""
    tp, model = profile.parallel.tp, Geometry()
    if not any("no padding plan" in why for why in ledger.refusals):
        return []
    per_group = model.heads // model.o_groups
    for heads in KERNEL_HEADS:
        groups = heads * tp // per_group
        if heads % per_group == 0 and groups >= model.o_groups:
            return [f"parallel.padding: {{num_attention_heads: {heads * tp}, o_groups: {groups}}}"]
    return []


def compare_with_published(profile: Profile, ledger: Ledger) -> dict[str, Any] | None:
    """The published weights of this tp beside ours, itemised; None where none are published."""
    tp = profile.parallel.tp
    if tp not in PUBLISHED_WEIGHTS:
        return None
    parts = [line for line in ledger.ranks[0].lines if line.name.startswith("weights:")]
    held = sum(line.bytes for line in parts)
    beside = [line for line in ledger.ranks[0].lines if line.name.startswith(("rope", "NCCL", "sliding"))]
    difference = PUBLISHED_WEIGHTS[tp] - held
    explained = sum(line.bytes for line in beside)
    return {
        "published_bytes": PUBLISHED_WEIGHTS[tp],
        "computed_bytes": held,
        "difference_bytes": difference,
        "may_be_counted_as_weights": [_item(line) for line in beside],
        "unexplained_bytes": difference - explained,
        "items": [_item(line) for line in parts],
    }


def document(profile: Profile, ledger: Ledger, contents: Contents) -> dict[str, Any]:
    """What `plan serve --json` shows as `ledger`."""
    return as_json(ledger) | {
        "origin": contents.origin,
        "published": compare_with_published(profile, ledger),
    }


def text(ledger: Ledger) -> list[str]:
    """The ledger in plain lines: the tightest rank in full, the others by their margin."""
    rank = ledger.tightest
    found = [f"memory: {ledger.verdict}; tightest is {rank.node} (rank {rank.rank})"]
    found += [
        f"  {line.name:<48}{_gib(line.bytes):>12}  ± {_gib(line.uncertainty_bytes)}" for line in rank.lines
    ]
    found.append(f"  {'left of ' + _gib(rank.total_bytes):<48}{_gib(rank.margin_bytes):>12}")
    found += [
        f"  {other.node} (rank {other.rank}): {other.verdict}, {_gib(other.margin_bytes)} left"
        for other in ledger.ranks
        if other is not rank
    ]
    found += [f"refused: {why}" for why in ledger.refusals]
    found += [f"remedy: {how}" for how in ledger.remedies]
    return found


def _item(line: Line) -> dict[str, Any]:
    return {"name": line.name, "bytes": line.bytes}


def _line(rank: RankLedger, start: str) -> Line:
    return next(line for line in rank.lines if line.name.startswith(start))


def _part(held: Weights, name: str) -> int:
    return sum(part.bytes for part in held.parts if part.part == name)


def _gib(value: int) -> str:
    return f"{value / GIB:.2f} GiB"
