"""`bench` and `bench compare` on the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from orchestrator.bench import store
from orchestrator.bench.compare import Comparison, Dimension, compare
from orchestrator.bench.export import comparison_markdown, csv_text, json_text, markdown
from orchestrator.bench.live import live
from orchestrator.bench.options import Options, quick
from orchestrator.bench.published import read_published
from orchestrator.bench.record import PromptKind, Provenance, Record, Slo
from orchestrator.bench.run import Scrape, Watch, run_bench
from orchestrator.bench.source import LoadSource, local
from orchestrator.errors import ConfigError, Exit

COMPARISON_SCHEMA = "sparkyard/bench-comparison/v1"
Source = contextlib.AbstractAsyncContextManager[LoadSource]


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint and everything that is known about it."""

    base_url: str
    """As the load source reaches it, without `/v1`."""
    provenance: Provenance = field(default_factory=Provenance)
    source: Callable[[], Source] = local
    api_key: str | None = None
    watch: Watch | None = None
    scrape: Scrape | None = None


def measure(
    target: Target,
    options: Options,
    *,
    name: str = "",
    as_json: bool = False,
    where: Path | None = None,
    report: Path | None = None,
) -> Exit:
    """Runs, stores the record, prints it; `report` also gets Markdown, CSV and plots in that folder.

    Raises:
        SparkyardError: as `run_bench`; ConfigError also when a file cannot be written.
    """

    async def run() -> Record:
        async with target.source() as source:
            with live() as show:
                return await run_bench(
                    target.base_url,
                    options,
                    target.provenance,
                    show,
                    name=name,
                    source=source,
                    api_key=target.api_key,
                    watch=target.watch,
                    scrape=target.scrape,
                )

    record = asyncio.run(run())
    path = store.keep(record, where or store.folder())
    typer.echo(f"record {record.id}: {path}", err=True)
    typer.echo(json_text(record) if as_json else markdown(record), nl=False)
    if report is not None:
        write_report((record,), report)
    if record.interrupted:
        return Exit.INTERRUPTED
    failed = sum(row.errors for row in record.rows)
    return Exit.FAILED if failed else Exit.FINE


def write_report(records: tuple[Record, ...], folder: Path) -> None:
    """Markdown, CSV, JSON and both plots as SVG and PNG.

    Raises:
        ConfigError: a file cannot be written.
    """
    # matplotlib takes half a second to load, which no other verb should wait for
    from orchestrator.bench.plot import decode_by_streams, prefill_by_length  # noqa: PLC0415

    store.write(folder / "bench.md", "\n".join(markdown(record) for record in records))
    store.write(folder / "bench.csv", csv_text(records))
    for record in records:
        store.write(folder / f"{record.id}.json", json_text(record))
    for suffix in (".svg", ".png"):
        decode_by_streams(records, folder / f"decode{suffix}")
        prefill_by_length(records, folder / f"prefill{suffix}")


def comparison_json(comparison: Comparison) -> str:
    """The comparison as one JSON object; records are named by id and name."""

    def row(record: Record, **more: Any) -> dict[str, Any]:
        return {"record": record.id, "name": record.name, "origin": record.origin, **more}

    rankings = [
        {
            "title": ranking.title,
            "figure": ranking.figure,
            "flags": ranking.flags,
            "rows": [
                row(
                    placed.entry.record,
                    median=placed.figure.median,
                    low=placed.figure.low,
                    high=placed.figure.high,
                    rounds=placed.figure.rounds,
                    ratio=placed.ratio,
                    ratio_low=placed.ratio_low,
                    ratio_high=placed.ratio_high,
                    significant=placed.significant,
                    flags=placed.flags,
                )
                for placed in ranking.placed
            ],
        }
        for ranking in comparison.rankings
    ]
    refusals = [
        {
            "row": row(
                refusal.row.record,
                measure=refusal.row.row.measure,
                kind=refusal.row.row.kind,
                streams=refusal.row.row.streams,
            ),
            "against": row(refusal.other),
            "reasons": [asdict(reason) for reason in refusal.reasons],
        }
        for refusal in comparison.refusals
    ]
    return (
        json.dumps({"schema": COMPARISON_SCHEMA, "rankings": rankings, "refusals": refusals}, indent=1) + "\n"
    )


def compare_records(
    names: list[str],
    *,
    across: frozenset[Dimension] = frozenset(),
    theirs: bool = False,
    as_json: bool = False,
    where: Path | None = None,
    report: Path | None = None,
) -> Exit:
    """Compares stored records; UNDETERMINED when nothing may be ranked.

    Raises:
        ConfigError: fewer than two records, or one that cannot be read.
    """
    records = tuple(record for name in names for record in store.read(name, where or store.folder()))
    records += read_published() if theirs else ()
    if len(records) < 2:  # a comparison needs two
        raise ConfigError([f"bench compare: {len(records)} record given, two or more are needed"])
    comparison = compare(records, across)
    typer.echo(comparison_json(comparison) if as_json else comparison_markdown(comparison), nl=False)
    if report is not None:
        write_report(records, report)
    return Exit.FINE if comparison.rankings else Exit.UNDETERMINED


def chosen_options(base: Options, **choices: Any) -> Options:
    """`base` with every choice that is not None.

    Raises:
        ConfigError: a choice is out of bounds; all are listed.
    """
    given = {key: value for key, value in choices.items() if value is not None}
    try:
        return Options.model_validate(base.model_dump() | given)
    except ValidationError as problem:
        raise ConfigError(
            [f"bench: --{'-'.join(map(str, error['loc']))}: {error['msg']}" for error in problem.errors()]
        ) from None


def numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """`1,2,4` as numbers.

    Raises:
        ConfigError: it is something else.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError([f"bench: {option}: {text!r} is no list of numbers such as 1,2,4"]) from None


Kinds = Annotated[
    list[PromptKind] | None, typer.Option("--kind", help="Prompt kind; several times for several.")
]
StreamsText = Annotated[str | None, typer.Option("--streams", help="Numbers of streams, such as 1,2,4,8,16.")]
Lengths = Annotated[
    str | None, typer.Option("--prefill", help="Prompt tokens of the cold prefill, such as 4096,16384.")
]
Rounds = Annotated[int | None, typer.Option(help="Measured rounds of each row; 3 or more show a spread.")]
OutputTokens = Annotated[int | None, typer.Option(help="Tokens of each answer.")]
Seed = Annotated[int | None, typer.Option(help="Sets the prompts.")]
Quick = Annotated[bool, typer.Option("--quick", help="Everything at small sizes.")]
SloTtft = Annotated[float, typer.Option(help="Capacity: time to first token in ms that still holds.")]
SloRate = Annotated[float, typer.Option(help="Capacity: tokens a second that every stream must get.")]
Report = Annotated[Path | None, typer.Option(help="Folder for Markdown, CSV, JSON and plots.")]
Name = Annotated[str, typer.Option(help="What the record is called.")]


def options_from(
    *,
    quick_sizes: bool,
    kinds: list[PromptKind] | None,
    streams: str | None,
    prefill: str | None,
    rounds: int | None,
    output_tokens: int | None,
    seed: int | None,
    slo_ttft_ms: float,
    slo_tok_s: float,
) -> Options:
    """Options from the command line.

    Raises:
        ConfigError: a choice is out of bounds.
    """
    return chosen_options(
        quick() if quick_sizes else Options(),
        kinds=tuple(kinds) if kinds else None,
        streams=numbers(streams, "--streams"),
        other_streams=numbers(streams, "--streams"),
        prefill_tokens=numbers(prefill, "--prefill"),
        rounds=rounds,
        output_tokens=output_tokens,
        seed=seed,
        slo=Slo(ttft_ms=slo_ttft_ms, stream_tok_s=slo_tok_s),
    )
