"""Which rows of several records may stand beside each other, which differ more than by chance, and which may
not be ranked at all, with the reason. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.bench.figures import MIN_ROUNDS, NOISY_SPREAD
from orchestrator.bench.obstacles import LEADING, Dimension, Entry, Reason, obstacles, ratio
from orchestrator.bench.record import Cache, Figure, NodeDuring, Record, Row, Speculation

LOWER_IS_BETTER = frozenset({"ttft_behind_ms", "ttft_p50_ms"})

ACCEPT_RATIO = 1.1  # accept length moves tokens a second one to one
SLOW_CLOCK_MHZ = 1400.0  # GB10 under load runs at 2177 to 2525 MHz; below 1400 field tests call it failed
CLOCK_RATIO = 1.15  # between nodes of one run: they carry the same load
CLIENT_SHARE = 0.9
ENOUGH_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry in a ranking; `against_best` compares it with the first."""

    entry: Entry
    figure: Figure
    ratio: float
    ratio_low: float
    ratio_high: float
    significant: bool
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows that may be ranked, best first."""

    title: str
    figure: str
    placed: tuple[Placed, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row without a fair counterpart in another record, and what stands between it and the nearest one."""

    row: Entry
    other: Record
    nearest: Row | None
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole answer."""

    rankings: tuple[Ranking, ...]
    refusals: tuple[Refusal, ...]


def compare(records: Sequence[Record], across: frozenset[Dimension] = frozenset()) -> Comparison:
    """Compares rows of the same measure and number of streams between records.

    Args:
        records: two or more; a record's rows are never compared with each other.
        across: dimensions that are the object of the comparison: a difference there is named, not refused.
    """
    rankings: list[Ranking] = []
    refusals: list[Refusal] = []
    entries = [Entry(record, row) for record in records for row in record.rows]
    keys = dict.fromkeys((entry.row.measure, entry.row.streams) for entry in entries)
    for measure, streams in keys:
        same = [entry for entry in entries if (entry.row.measure, entry.row.streams) == (measure, streams)]
        rankings += [_rank(cluster, across) for cluster in _clusters(same, across) if len(cluster) > 1]
        refusals += _refusals(same, records, across)
    return Comparison(tuple(rankings), tuple(refusals))


def flags(entry: Entry) -> tuple[str, ...]:
    """What makes one row doubtful by itself."""
    record, row = entry.record, entry.row
    found = []
    figure = entry.figure
    if figure is not None and figure.rounds < MIN_ROUNDS:
        runs = "a single run" if figure.rounds == 1 else f"{figure.rounds} runs"
        found.append(f"{runs}: no spread is known, a difference may be chance")
    if figure is not None and figure.spread > NOISY_SPREAD:
        found.append(f"noisy: the rounds differ by {figure.spread:.0%} of their median")
    found += [slow for node in record.nodes if (slow := _slow(node))]
    found += _uneven_clocks(record.nodes)
    found += [
        f"{finding.where}: doctor finding {finding.check} ({finding.measured})"
        for finding in record.provenance.findings
        if finding.severity in {"error", "warning"}
    ]
    found += [f"{node.node}: foreign load: {node.foreign_load}" for node in record.nodes if node.foreign_load]
    if row.errors:
        found.append(f"{row.errors} of {row.requests} requests failed")
    if row.client_cpu_share is not None and row.client_cpu_share > CLIENT_SHARE:
        found.append(f"the load client used {row.client_cpu_share:.0%} of a core: it may be the limit")
    if record.interrupted or record.failure:
        found.append("the run ended early")
    if row.cache is Cache.UNSTATED:
        found.append("cold or warm prefix cache is not stated")
    if row.prompt_tokens is None:
        found.append("the prompt length is not stated")
    return tuple(found)


def pair_flags(one: Entry, other: Entry) -> tuple[str, ...]:
    """What differs between two rows that may be ranked and yet has to be known."""
    first, second = one.record.provenance, other.record.provenance
    found = []
    if one.record is not other.record and (first.boot_id is None or first.boot_id != second.boot_id):
        found.append(
            "two boots: KV size, page cache and GPU state change between boots"
            if first.boot_id and second.boot_id
            else "the boots are not stated, so they may be two"
        )
    if first.context_limit_tokens != second.context_limit_tokens:
        found.append(
            f"context limit {_told(first.context_limit_tokens)} against {_told(second.context_limit_tokens)}"
        )
    if first.kv_format != second.kv_format:
        found.append(f"KV format {_told(first.kv_format)} against {_told(second.kv_format)}")
    if first.engine_version != second.engine_version:
        found.append(f"engine version {_told(first.engine_version)} against {_told(second.engine_version)}")
    lengths = (_accept(first.speculation), _accept(second.speculation))
    if None not in lengths and ratio(*lengths) > ACCEPT_RATIO:  # type: ignore[arg-type]
        found.append(f"accept length {lengths[0]:.2f} against {lengths[1]:.2f}: the texts draft unlike")
    if one.row.prompts_sha256 != other.row.prompts_sha256:
        found.append("not the same prompts")
    if one.row.output_tokens != other.row.output_tokens:
        found.append(
            f"answers of {_told(one.row.output_tokens)} against {_told(other.row.output_tokens)} tokens"
        )
    choices = (
        (name, getattr(one.record.method, name), getattr(other.record.method, name))
        for name in ("temperature", "ignore_eos", "load_from")
    )
    found += [
        f"{name.replace('_', ' ')} {_told(mine)} against {_told(theirs)}"
        for name, mine, theirs in choices
        if mine != theirs
    ]
    return tuple(found)


def _accept(value: Speculation | str | None) -> float | None:
    return value.accept_length if isinstance(value, Speculation) else None


def _slow(node: NodeDuring) -> str | None:
    if node.sm_clock_high_mhz is None or node.sm_clock_high_mhz >= SLOW_CLOCK_MHZ:
        return None
    return (
        f"{node.node}: slow GPU state: never above {node.sm_clock_high_mhz:.0f} MHz under load, healthy is "
        f"{SLOW_CLOCK_MHZ:.0f} and more"
    )


def _uneven_clocks(nodes: Sequence[NodeDuring]) -> list[str]:
    clocks = {node.node: node.sm_clock_high_mhz for node in nodes if node.sm_clock_high_mhz is not None}
    if len(clocks) < 2 or ratio(min(clocks.values()), max(clocks.values())) <= CLOCK_RATIO:
        return []
    slowest = min(clocks, key=lambda name: clocks[name])
    return [
        f"{slowest}: slower GPU than its peers: {clocks[slowest]:.0f} against {max(clocks.values()):.0f} MHz"
    ]


def _told(value: object) -> str:
    return "not stated" if value is None else str(value)


def _blocking(one: Entry, other: Entry, across: frozenset[Dimension]) -> tuple[Reason, ...]:
    return tuple(reason for reason in obstacles(one, other) if reason.dimension not in across)


def _clusters(entries: Sequence[Entry], across: frozenset[Dimension]) -> list[list[Entry]]:
    """Groups in which every two rows of different records may be ranked. Rows without the leading figure fall
    out."""
    clusters: list[list[Entry]] = []
    for entry in entries:
        if entry.figure is None:
            continue
        for cluster in clusters:
            if all(
                known.record is not entry.record and not _blocking(known, entry, across) for known in cluster
            ):
                cluster.append(entry)
                break
        else:
            clusters.append([entry])
    return clusters


def _rank(cluster: Sequence[Entry], across: frozenset[Dimension]) -> Ranking:
    first = cluster[0].row
    name = LEADING[first.measure]
    lower = name in LOWER_IS_BETTER
    figures = [(entry, entry.figure) for entry in cluster]
    ordered = sorted(
        ((entry, figure) for entry, figure in figures if figure is not None),
        key=lambda pair: pair[1].median if lower else -pair[1].median,
    )
    best = ordered[0][1]
    placed = []
    for entry, figure in ordered:
        placed.append(
            Placed(
                entry=entry,
                figure=figure,
                ratio=figure.median / best.median if best.median else 1.0,
                ratio_low=figure.low / best.high if best.high else 1.0,
                ratio_high=figure.high / best.low if best.low else 1.0,
                significant=_apart(best, figure),
                flags=flags(entry),
            )
        )
    said = dict.fromkeys(
        text
        for one, other in itertools.combinations(cluster, 2)
        for text in _all_pair_flags(one, other, across)
    )
    length = "" if first.prompt_tokens is None else f", about {first.prompt_tokens:,} prompt tokens"
    title = f"{first.measure}, {first.kind}, {first.cache}, {first.streams} streams{length}"
    return Ranking(title, name, tuple(placed), tuple(said))


def _apart(one: Figure, other: Figure) -> bool:
    """Whether two figures differ by more than chance explains, as far as the lowest and highest of rounds can tell.

    The ranges of three equal rounds each lie apart in 10 of 100 cases by chance alone, and farther apart than the wider
    one is wide in 0.8; those of five lie apart in 0.8 (normal noise, 200,000 draws).
    """
    rounds = min(one.rounds, other.rounds)
    gap = max(one.low - other.high, other.low - one.high)
    if rounds < MIN_ROUNDS or gap <= 0:
        return False
    return rounds >= ENOUGH_ROUNDS or gap > max(one.high - one.low, other.high - other.low)


def _all_pair_flags(one: Entry, other: Entry, across: frozenset[Dimension]) -> list[str]:
    asked = [
        f"as asked, across {reason.dimension}: {reason.text}"
        for reason in obstacles(one, other)
        if reason.dimension in across
    ]
    return [*asked, *pair_flags(one, other)]


def _refusals(
    same: Sequence[Entry], records: Sequence[Record], across: frozenset[Dimension]
) -> list[Refusal]:
    """For each row and each later record without a fair counterpart: the nearest row and what forbids it."""
    found = []
    order = {id(record): place for place, record in enumerate(records)}
    for entry in same:
        for other in records[order[id(entry.record)] + 1 :]:
            rivals = [rival for rival in same if rival.record is other]
            reasons = {id(rival): _blocking(entry, rival, across) for rival in rivals}
            if not rivals or any(not blocked for blocked in reasons.values()):
                continue
            nearest = min(rivals, key=lambda rival: len(reasons[id(rival)]))
            found.append(Refusal(entry, other, nearest.row, reasons[id(nearest)]))
    return found
