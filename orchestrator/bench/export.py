"""Records and comparisons as Markdown, CSV and JSON. Pure text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from orchestrator.bench.compare import Comparison, Placed
from orchestrator.bench.record import Figure, Measure, NodeDuring, Record, Row, Share, Speculation, Steps

ROW_COLUMNS = ("measure", "kind", "streams", "cache", "prompt_tokens", "output_tokens", "requests", "errors")
FIGURE_COLUMNS = ("unit", "median", "low", "high", "rounds")
CSV_COLUMNS = (
    *("record", "name", "origin", "model", "revision", "engine", "quantisation", "kv_format"),
    *("context_limit_tokens", "tp", "speculation", "hardware", "boot_id"),
    *ROW_COLUMNS,
    "figure",
    *FIGURE_COLUMNS,
)
SHOWN = {
    Measure.DECODE: (
        "decode_tok_s",
        "stream_tok_s",
        "ttft_p50_ms",
        "gap_p50_ms",
        "gap_p99_ms",
        "e2e_p50_ms",
        "requests_s",
    ),
    Measure.PREFILL: ("prefill_tok_s", "ttft_p50_ms"),
    Measure.NEEDLE: ("found", "prefill_tok_s"),
    Measure.CHAT_BEHIND_PREFILL: ("ttft_alone_ms", "ttft_behind_ms", "stall_ms"),
    Measure.AGENT_CHAIN: ("ttft_p50_ms", "ttft_last_turn_ms", "e2e_p50_ms", "cached_share"),
}


def told(figure: Figure | None) -> str:
    """`median (low–high)`, the median alone for a single round, a dash for nothing."""
    if figure is None:
        return "–"
    if figure.rounds == 1:
        return _number(figure.median)
    return f"{_number(figure.median)} ({_number(figure.low)}–{_number(figure.high)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(cells) for cells in lines)]


def json_text(record: Record) -> str:
    """The record itself; reads back to an equal record."""
    return record.model_dump_json(by_alias=True, indent=1) + "\n"


def _hardware(record: Record) -> str:
    return " + ".join(f"{part.count} × {part.name}" for part in record.provenance.hardware)


def _speculation(record: Record) -> str:
    value = record.provenance.speculation
    if not isinstance(value, Speculation):
        return value or ""
    accept = "" if value.accept_length is None else f", {value.accept_length:.2f} tokens a step accepted"
    return f"{value.algorithm} block {value.block_size}{accept}"


def csv_text(records: Sequence[Record]) -> str:
    """One line a figure."""
    lines = [
        _csv_line(record, row, figure) for record in records for row in record.rows for figure in row.figures
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _csv_line(record: Record, row: Row, figure: Figure) -> dict[str, object]:
    known = record.provenance
    return {
        "record": record.id,
        "name": record.name,
        "origin": record.origin,
        "model": known.model,
        "revision": known.model_revision,
        "engine": known.engine,
        "quantisation": known.quantisation,
        "kv_format": known.kv_format,
        "context_limit_tokens": known.context_limit_tokens,
        "tp": known.tp,
        "speculation": _speculation(record),
        "hardware": _hardware(record),
        "boot_id": known.boot_id,
        **row.model_dump(mode="json", include=set(ROW_COLUMNS)),
        "figure": figure.name,
        **figure.model_dump(include=set(FIGURE_COLUMNS)),
    }


def _facts(record: Record) -> list[tuple[str, str]]:
    known, method = record.provenance, record.method
    revision = f" at {known.model_revision}" if known.model_revision else ""
    facts = [
        ("model", f"{known.model}{revision}"),
        ("engine", " ".join(filter(None, (known.engine, known.engine_version, known.image)))),
        ("weights", known.quantisation or "not stated"),
        ("KV format", known.kv_format or "not stated"),
        ("context limit", str(known.context_limit_tokens or "not stated")),
        ("KV tokens", str(known.kv_tokens or "not stated")),
        ("tp, padding", f"{known.tp or 'not stated'}, {known.padding or 'not stated'}"),
        ("speculation", _speculation(record) or "not stated"),
        ("hardware", _hardware(record) or "not stated"),
        ("profile", " ".join(filter(None, (known.profile, known.profile_sha256)))),
        ("rank specs", ", ".join(spec[:12] for spec in known.rank_specs)),
        ("boot", known.boot_id or "not stated"),
        ("load from", method.load_from),
        ("rounds", f"{method.rounds} after {method.warm_up_rounds} for warm-up, seed {method.seed}"),
        ("text", method.text),
        ("source", record.source),
    ]
    return [(name, value) for name, value in facts if value]


def _rows(measure: Measure, rows: Sequence[Row]) -> list[str]:
    names = SHOWN[measure]
    head = ("kind", "streams", "cache", "prompt", "answer", *names, "client CPU", "remarks")
    lines = (
        (
            row.kind,
            str(row.streams),
            row.cache,
            "–" if row.prompt_tokens is None else f"{row.prompt_tokens}",
            "–" if row.output_tokens is None else f"{row.output_tokens}",
            *(told(row.figure(name)) for name in names),
            "–" if row.client_cpu_share is None else f"{row.client_cpu_share:.0%}",
            "; ".join(row.notes),
        )
        for row in rows
    )
    return _table(head, lines)


def _share(part: Share | None) -> str:
    return "–" if part is None else f"{part.seconds_per_step * 1e3:.2f} ms, {part.share:.0%}"


def _step_lines(steps: Steps) -> list[str]:
    lines = ["", "## Where a decode step goes", ""]
    parts = list(dict.fromkeys(part.what for rank in steps.ranks for part in rank.parts))
    if steps.ranks:
        head = ("part", *(f"rank {rank.rank}" for rank in steps.ranks))
        shares = [{part.what: part for part in rank.parts} for rank in steps.ranks]
        table = [(what, *(_share(share.get(what)) for share in shares)) for what in parts]
        whole = (
            "a step in all",
            *(f"{rank.step_s * 1e3:.2f} ms of {rank.steps} steps" for rank in steps.ranks),
        )
        lines += _table(head, [*table, whole])
    if steps.slowest_rank is not None and steps.slow_rank_cost is not None:
        lines += [
            "",
            f"Rank {steps.slowest_rank} reads slowest: all wait {steps.slow_rank_cost:.1%} of a step for it.",
        ]
    return lines + [f"- {note}" for note in steps.notes]


def markdown(record: Record) -> str:
    """A report of one record."""
    lines = [
        f"# {record.name}",
        "",
        f"Record {record.id}, {record.origin}. Figures: median (lowest–highest of the rounds).",
    ]
    if record.interrupted:
        lines += ["", "**The run was interrupted; this is what was measured until then.**"]
    if record.failure:
        lines += ["", f"**The run ended early: {record.failure}**"]
    lines += ["", *_table(("what", "value"), _facts(record))]
    for measure in Measure:
        rows = [row for row in record.rows if row.measure is measure]
        if rows:
            lines += ["", f"## {measure}", "", *_rows(measure, rows)]
    if record.capacity is not None:
        found = record.capacity
        slo = f"TTFT ≤ {found.slo.ttft_ms:.0f} ms and ≥ {found.slo.stream_tok_s:.0f} tok/s"
        bound = f"bounded by {found.bounded_by}"
        lines += ["", "## Capacity", "", f"{found.streams} streams of {found.kind} hold {slo} ({bound})."]
        lines += [f"Breaks first {found.breaks_first}."] if found.breaks_first else []
    if record.steps is not None:
        lines += _step_lines(record.steps)
    if record.nodes:
        head = (
            "node",
            "samples",
            "SM clock MHz",
            "power W",
            "°C",
            "memory low GiB",
            "link rx/tx GB",
            "Engram rows",
            "p99 ms",
            "foreign load",
        )
        lines += ["", "## Nodes during the run", "", *_table(head, [_node(node) for node in record.nodes])]
    for title, entries in (("Noisy rows", record.noisy), ("Notes", record.notes)):
        if entries:
            lines += ["", f"## {title}", "", *(f"- {entry}" for entry in entries)]
    return "\n".join(lines) + "\n"


def _node(node: NodeDuring) -> tuple[str, ...]:
    def cell(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
        return "–" if value is None else f"{value / scale:.{digits}f}"

    return (
        node.node,
        str(node.samples),
        f"{cell(node.sm_clock_low_mhz)}–{cell(node.sm_clock_high_mhz)}",
        cell(node.power_high_w),
        cell(node.temperature_high_c),
        cell(node.memory_low_bytes, 2**30, 1),
        f"{cell(node.link_rx_bytes, 1e9, 2)}/{cell(node.link_tx_bytes, 1e9, 2)}",
        cell(node.engram_rows),
        cell(node.engram_p99_s, 1e-3, 2),
        "–" if node.foreign_load is None else node.foreign_load or "none",
    )


def _placed(placed: Placed, *, first: bool) -> tuple[str, ...]:
    verdict = "differs beyond the spread" if placed.significant else "no difference shown"
    ratio = f"{placed.ratio:.2f} × ({placed.ratio_low:.2f}–{placed.ratio_high:.2f})"
    record = placed.entry.record
    return (
        record.name,
        record.origin,
        told(placed.figure),
        "–" if first else ratio,
        "first" if first else verdict,
        "; ".join(placed.flags),
    )


def comparison_markdown(comparison: Comparison) -> str:
    """What may be ranked, ranked; what may not, with the reasons."""
    lines: list[str] = []
    for ranking in comparison.rankings:
        best = ranking.placed[0]
        lines += [f"## {ranking.title}", ""]
        head = ("record", "origin", ranking.figure, "against the first", "verdict", "flags")
        lines += _table(head, [_placed(placed, first=placed is best) for placed in ranking.placed])
        lines += ["", *(f"- {flag}" for flag in ranking.flags), ""]
    if not comparison.rankings:
        lines += ["Nothing here may be ranked.", ""]
    if comparison.refusals:
        lines += ["## Not ranked", ""]
        for refusal in comparison.refusals:
            row = refusal.row.row
            reasons = "; ".join(f"{reason.dimension}: {reason.text}" for reason in refusal.reasons)
            name = f"{row.measure} {row.kind} {row.cache} × {row.streams}"
            lines.append(f"- {name} of {refusal.row.record.name} against {refusal.other.name}: {reasons}")
    return "\n".join(lines).rstrip() + "\n"
