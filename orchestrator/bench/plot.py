"""Plots of records for a report: decode by streams, prefill by length. SVG or PNG, by the file's suffix."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from orchestrator.bench.record import Cache, Figure, Measure, Record, Row
from orchestrator.errors import ConfigError

SUFFIXES = (".svg", ".png")
SIZE_INCHES = (9.0, 5.0)
DOTS_PER_INCH = 150
Point = tuple[int, Figure]


def decode_by_streams(records: Sequence[Record], path: Path) -> None:
    """Aggregate tokens a second against streams, one line a record and prompt kind.

    Raises:
        ConfigError: the suffix is none of `SUFFIXES`, or the file cannot be written.
    """
    lines = _lines(records, Measure.DECODE, "decode_tok_s")
    _draw(path, lines, "Decode, all streams together", "streams", "tokens/s")


def prefill_by_length(records: Sequence[Record], path: Path) -> None:
    """Prefill tokens a second against prompt tokens, one line a record, kind and cache state.

    Raises:
        ConfigError: the suffix is none of `SUFFIXES`, or the file cannot be written.
    """
    lines = _lines(records, Measure.PREFILL, "prefill_tok_s")
    _draw(path, lines, "Prefill", "prompt tokens", "tokens/s")


def _lines(records: Sequence[Record], measure: Measure, name: str) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for record in records:
        for row in record.rows:
            place = row.streams if measure is Measure.DECODE else row.prompt_tokens
            if row.measure is measure and place is not None and (figure := row.figure(name)) is not None:
                lines.setdefault(_label(record, row), []).append((place, figure))
    return {label: sorted(points, key=lambda point: point[0]) for label, points in lines.items()}


def _label(record: Record, row: Row) -> str:
    origin = " (theirs)" if record.origin == "theirs" else ""
    cache = f", {row.cache}" if row.measure is Measure.PREFILL and row.cache is not Cache.UNSTATED else ""
    return f"{record.name}{origin}: {row.kind}{cache}"


def _draw(path: Path, lines: dict[str, list[Point]], title: str, across: str, up: str) -> None:
    if path.suffix not in SUFFIXES:
        raise ConfigError([f"{path}: the suffix must be {' or '.join(SUFFIXES)}"])
    # a fixed salt and no date: equal records give equal files
    with mpl.rc_context({"svg.hashsalt": "sparkyard", "svg.fonttype": "none"}):
        canvas = Canvas(figsize=SIZE_INCHES, layout="constrained")
        axes = canvas.add_subplot()
        for label, points in lines.items():
            _line(axes, label, points)
        places = sorted({place for points in lines.values() for place, _figure in points})
        axes.set(title=f"{title}: median, lowest and highest of the rounds", xlabel=across, ylabel=up)
        axes.set_ylim(bottom=0)
        if places:
            axes.set_xscale("log", base=2)
            axes.set_xticks(places, [f"{place:,}" for place in places], rotation=30)
            axes.minorticks_off()
            axes.legend(fontsize="small")
        axes.grid(visible=True, alpha=0.3)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        kind = path.suffix[1:]
        metadata = {"Date": None} if kind == "svg" else None
        try:
            canvas.savefig(partial, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
            partial.replace(path)
        except OSError as problem:
            raise ConfigError([f"{path}: {problem.strerror}"]) from None


def _line(axes: Axes, label: str, points: Sequence[Point]) -> None:
    below = [figure.median - figure.low for _place, figure in points]
    above = [figure.high - figure.median for _place, figure in points]
    medians = [figure.median for _place, figure in points]
    places = [place for place, _figure in points]
    axes.errorbar(places, medians, yerr=(below, above), label=label, marker="o", capsize=3, linewidth=1.5)
