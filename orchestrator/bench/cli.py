"""`bench` and `bench compare` on the command line."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from orchestrator.bench import store
from orchestrator.bench.compare import Comparison, compare
from orchestrator.bench.export import comparison_markdown, csv_text, json_text, markdown
from orchestrator.bench.live import live
from orchestrator.bench.obstacles import Dimension
from orchestrator.bench.options import Options, quick
from orchestrator.bench.published import read_published
from orchestrator.bench.record import PromptKind, Provenance, Record
from orchestrator.bench.run import Emit, run_bench
from orchestrator.errors import ConfigError, Exit, SparkyardError

COMPARISON_SCHEMA = "sparkyard/bench-comparison/v1"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line says beside `Options`; `profile` and `cluster` as for every verb."""

    profile: str | None = None
    cluster: Path | None = None
    url: str | None = None
    """Measure this endpoint instead of a deployment of ours; nothing is then known but what it says itself."""
    name: str = ""
    load_from: str | None = None
    key_file: Path | None = None


Measured = Callable[[Options, Choices, Emit], Coroutine[Any, Any, Record]]


def api_key(path: Path | None) -> str | None:
    """The API key in a file, never shown or recorded.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return None if path is None else path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(
            [f"{path}: {problem}; give the key's file on this machine with --api-key-file"]
        ) from None


async def bare(options: Options, choices: Choices, emit: Emit) -> Record:
    """Measures any endpoint from this machine."""
    url, key = choices.url or "", api_key(choices.key_file)
    return await run_bench(url, options, Provenance(), emit, name=choices.name, api_key=key)


def measure(
    measured: Measured, options: Options, choices: Choices, *, as_json: bool, report: Path | None
) -> Exit:
    """Runs, stores the record, prints it; `report` also gets Markdown, CSV, JSON and plots in that folder.

    Raises:
        SparkyardError: as `run_bench`; ConfigError also when a file cannot be written.
    """

    async def run() -> Record:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are in one
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        with live() as show:
            return await (bare if choices.url else measured)(options, choices, show)

    record = asyncio.run(run())
    path = store.keep(record, store.folder())
    typer.echo(f"record {record.id}: {path}", err=True)
    typer.echo(json_text(record) if as_json else markdown(record), nl=False)
    if report is not None:
        write_report((record,), report)
    if record.interrupted:
        return Exit.INTERRUPTED
    return Exit.FAILED if record.failure or any(row.errors for row in record.rows) else Exit.FINE


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
    report: Path | None = None,
) -> Exit:
    """Compares stored records; UNDETERMINED when nothing may be ranked.

    Raises:
        ConfigError: fewer than two records, or one that cannot be read.
    """
    records = tuple(record for name in names for record in store.read(name, store.folder()))
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
    list[PromptKind] | None, typer.Option("--kind", help="Prompt kind; may stand several times.")
]
StreamsText = Annotated[str | None, typer.Option("--streams", help="Numbers of streams, such as 1,2,4,8,16.")]
Lengths = Annotated[
    str | None, typer.Option("--prefill", help="Prompt tokens of the cold prefill, such as 4096,16384.")
]
Rounds = Annotated[int | None, typer.Option(help="Measured rounds of each row; 3 or more show a spread.")]
OutputTokens = Annotated[int | None, typer.Option(help="Tokens of each answer.")]
Seed = Annotated[int | None, typer.Option(help="Sets the prompts.")]
Quick = Annotated[bool, typer.Option("--quick", help="Everything at small sizes; on the lab always.")]
SloTtft = Annotated[float, typer.Option(help="Capacity: time to first token in ms that still holds.")]
SloRate = Annotated[float, typer.Option(help="Capacity: tokens a second that every stream must get.")]
Report = Annotated[Path | None, typer.Option(help="Folder for Markdown, CSV, JSON and plots.")]
Name = Annotated[str, typer.Option(help="What the record is called.")]
LoadFrom = Annotated[
    str | None, typer.Option(help="Node that sends the load, or controller; default: a worker.")
]
Url = Annotated[str | None, typer.Option(help="Measure this endpoint instead of a deployment of ours.")]
KeyFile = Annotated[Path | None, typer.Option("--api-key-file", help="File with the API key.")]
ProfileName = Annotated[str | None, typer.Option("--profile", help="As for every verb.")]
ClusterFile = Annotated[Path | None, typer.Option("--cluster", help="As for every verb.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Across = Annotated[
    list[Dimension] | None,
    typer.Option("--across", help="What the comparison is about: a difference there is named, not refused."),
]
Theirs = Annotated[bool, typer.Option("--theirs", help="Also the published tables that ship with sparkyard.")]
Records = Annotated[list[str], typer.Argument(help="Record files or ids, or YAML files of published tables.")]


def bench_app(
    measured: Measured, is_lab: Callable[[str | None, Path | None], bool], fail: Callable[..., NoReturn]
) -> typer.Typer:
    """The commands `bench` and `bench compare`.

    Args:
        measured: measures a deployment of ours.
        is_lab: whether profile and cluster, as given, mean the lab.
        fail: ends the program with an error's text and exit code; takes the error and `as_json`.
    """
    app = typer.Typer(
        help="Measure the deployment that serves; compare records.", invoke_without_command=True
    )

    @app.callback()
    def bench(
        context: typer.Context,
        kind: Kinds = None,
        streams: StreamsText = None,
        prefill: Lengths = None,
        rounds: Rounds = None,
        output_tokens: OutputTokens = None,
        seed: Seed = None,
        small: Quick = False,
        slo_ttft_ms: SloTtft = 1000.0,
        slo_tok_s: SloRate = 20.0,
        name: Name = "",
        load_from: LoadFrom = None,
        url: Url = None,
        key_file: KeyFile = None,
        report: Report = None,
        profile: ProfileName = None,
        cluster: ClusterFile = None,
        as_json: AsJson = False,
    ) -> None:
        """Measure the deployment that serves: decode, prefill, needle, chat behind prefill, agent chain, capacity."""
        if context.invoked_subcommand is not None:
            return
        try:
            options = chosen_options(
                quick() if small or (url is None and is_lab(profile, cluster)) else Options(),
                kinds=tuple(kind) if kind else None,
                streams=numbers(streams, "--streams"),
                other_streams=numbers(streams, "--streams"),
                prefill_tokens=numbers(prefill, "--prefill"),
                rounds=rounds,
                output_tokens=output_tokens,
                seed=seed,
                slo={"ttft_ms": slo_ttft_ms, "stream_tok_s": slo_tok_s},
            )
            choices = Choices(profile, cluster, url, name, load_from, key_file)
            code = measure(measured, options, choices, as_json=as_json, report=report)
        except SparkyardError as error:
            fail(error, as_json=as_json)
        raise typer.Exit(int(code))

    @app.command(name="compare")
    def compare_command(
        records: Records,
        across: Across = None,
        theirs: Theirs = False,
        report: Report = None,
        as_json: AsJson = False,
    ) -> None:
        """Rank what may be ranked, and say why the rest may not. Exit 3 when nothing may."""
        try:
            dimensions = frozenset(across or ())
            code = compare_records(records, across=dimensions, theirs=theirs, as_json=as_json, report=report)
        except SparkyardError as error:
            fail(error, as_json=as_json)
        raise typer.Exit(int(code))

    return app
