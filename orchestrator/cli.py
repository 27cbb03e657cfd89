"""The command line: options in, one verb, data to standard output, the rest to standard error, an exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from orchestrator import benchmark, last_good, verbs
from orchestrator import doctor as diagnosis
from orchestrator import logs as log_lines
from orchestrator import monitor as watching
from orchestrator import top as dashboard
from orchestrator.bench.cli import Choices, bench_app
from orchestrator.bench.options import Options
from orchestrator.bench.progress import BenchEvent
from orchestrator.bench.record import Record
from orchestrator.checks import CHECKS
from orchestrator.errors import ConfigError, Exit, SparkyardError
from orchestrator.explain import verb as explaining
from orchestrator.first_contact_cli import add_first_contact
from orchestrator.lab import cycle
from orchestrator.lab.place import lab_place
from orchestrator.load import default_cluster_path, load_cluster, load_profile
from orchestrator.model.event import Event
from orchestrator.model.plain import clean, json_line
from orchestrator.plan.proven import ITEMS
from orchestrator.plan.sources import ITEMS as SOURCES
from orchestrator.prune import prune as prune_images
from orchestrator.verbs import Answer, Session
from orchestrator.verify import verify_checkpoint
from orchestrator.view import doctor as report
from orchestrator.view.log import EventLog
from orchestrator.view.terminal import Terminal
from orchestrator.view.text import TextView, plan_text, status_text
from orchestrator.watch import install as watch_install
from orchestrator.watch import maintenance
from orchestrator.watch.guardian import with_canary
from orchestrator.watch.keep import LOOK_EVERY_S, Keep
from orchestrator.watch.key import with_key
from orchestrator.watch.policy import CANARY_PACE_S, Policy
from orchestrator.watch.record import keep
from orchestrator.watch.samples import Pace
from orchestrator.watch.unit import Unit

app = typer.Typer(
    name="sparkyard",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Runs DeepSeek-V4.1-Flash on three or four DGX Spark nodes as one OpenAI endpoint.",
)

ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Shipped name or file. Default: lab while a lab is there and no cluster.yaml, else tp3 or tp4.",
    ),
]
ClusterOption = Annotated[
    Path | None, typer.Option("--cluster", help="Cluster file. Default: ./cluster.yaml.")
]
NodesOption = Annotated[str | None, typer.Option("--nodes", help="Only these nodes, separated by commas.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the stages, touch nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before acting.")]
PREFLIGHT = (verbs.LEDGER, *SOURCES)
IgnoreItemOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        help=f"What a start shall accept: an item of the preflight ({', '.join(PREFLIGHT)}) or of the proof "
        f"({', '.join(ITEMS)}), or a check of the doctor; may stand several times.",
    ),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Also say why each step is taken.")]

err = Terminal(stderr=True)
out = Terminal()


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every verb has."""

    profile: str | None
    cluster: Path | None
    nodes: str | None = None
    verbose: bool = False
    ignore: tuple[str, ...] = ()

    def cluster_file(self) -> Path:
        """Which cluster file; the lab's when it is the lab's profile that is asked for."""
        if self.cluster is not None:
            return self.cluster
        default, lab = default_cluster_path(), lab_place().cluster_file
        if self.profile == "lab" or (self.profile is None and not default.exists() and lab.exists()):
            return lab
        return default

    def session(self, emit: Callable[[Event], None]) -> Session:
        """Profile and cluster, loaded and checked."""
        path = self.cluster_file()
        cluster = load_cluster(path)
        if self.nodes:
            cluster = only(cluster, self.nodes)
        name = self.profile or (
            "lab" if path == lab_place().cluster_file else f"deepseek-v4.1-flash-tp{len(cluster.nodes)}"
        )
        below = verbs.events_path(path).parent / "evidence"
        return Session(load_profile(name), cluster, emit, ignore=self.ignore, evidence=below)


def only(cluster: Any, names: str) -> Any:
    """The cluster with these nodes only. The names are checked."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = {node.name for node in cluster.nodes}
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError(
            [f"--nodes: no node is called {', '.join(unknown)}; known: {', '.join(sorted(known))}"]
        )
    kept = tuple(node for node in cluster.nodes if node.name in wanted)
    head = cluster.head if cluster.head in wanted else kept[0].name
    return cluster.model_copy(update={"nodes": kept, "head": head})


def run(
    common: Common,
    work: Callable[[Session], Coroutine[Any, Any, Answer]],
    *,
    as_json: bool,
    show: Callable[[dict[str, Any]], None] | None = None,
) -> NoReturn:
    """Load, run, print, exit. Errors of the tree become their text and exit code; nothing else is caught."""
    try:
        sinks: list[Callable[[Event], None]] = []
        session = common.session(partial(emit_to, sinks))
        with ExitStack() as stack:
            sinks.append(stack.enter_context(EventLog(verbs.events_path(common.cluster_file()))).emit)
            sinks.append(stack.enter_context(TextView(err, verbose=common.verbose)).emit)
            answer = asyncio.run(work(session))
    except SparkyardError as error:
        fail(error, as_json=as_json)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(int(Exit.INTERRUPTED)) from None
    if as_json:
        out_json(answer.data)
    elif show is not None and answer.data:
        show(answer.data)
    raise SystemExit(int(answer.exit_code))


def emit_to(sinks: list[Callable[[Event], None]], event: Event) -> None:
    """Give one event to every sink."""
    for sink in sinks:
        sink(event)


def out_json(data: dict[str, Any]) -> None:
    """One object on one line of standard output."""
    sys.stdout.write(json_line(data) + "\n")


def fail(error: SparkyardError, *, as_json: bool) -> NoReturn:
    """The error's text on standard error (and as an object with `--json`), its exit code."""
    err.print(f"[red]{type(error).__name__}[/]:", end=" ", highlight=False)
    err.print(str(error), markup=False, highlight=False, soft_wrap=True)
    if as_json:
        out_json({"schema": "sparkyard/error/v1", "error": type(error).__name__, "message": str(error)})
    raise SystemExit(int(error.exit_code))


def known_items(names: list[str]) -> None:
    """A typo must not switch nothing off."""
    known = (*ITEMS, *PREFLIGHT)
    if unknown := sorted(set(names) - {*known, *(check.id for check in CHECKS)}):
        text = (
            f"{', '.join(unknown)}: there are {', '.join(known)}, and every check of sparkyard doctor --list"
        )
        raise typer.BadParameter(text, param_hint="--ignore")


@dataclass(frozen=True, slots=True)
class Called:
    """How a converging verb was called."""

    common: Common
    dry_run: bool
    yes: bool
    as_json: bool

    def carry_out(
        self,
        plan: Callable[[Session], Coroutine[Any, Any, Answer]],
        do: Callable[[Session], Coroutine[Any, Any, Answer]],
    ) -> NoReturn:
        """Show the plan, or confirm it on a terminal and do it."""
        known_items(list(self.common.ignore))
        if self.dry_run:
            run(self.common, plan, as_json=self.as_json, show=lambda d: plan_text(out, d))
        if sys.stdin.isatty() and sys.stdout.isatty() and not self.yes and not self.as_json:
            confirm(self.common, plan)
        run(self.common, do, as_json=self.as_json)


def converging_verb(name: str, help_text: str) -> None:
    """Register one converging verb; they have the same options."""

    def command(
        profile: ProfileOption = None,
        cluster: ClusterOption = None,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        as_json: JsonOption = False,
        verbose: VerboseOption = False,
        ignore: IgnoreItemOption = None,
    ) -> None:
        common = Common(profile, cluster, verbose=verbose, ignore=tuple(ignore or ()))
        Called(common, dry_run, yes, as_json).carry_out(
            lambda s: verbs.planned(s, name), lambda s: verbs.converging(s, name)
        )

    command.__doc__ = help_text
    app.command(name=name)(command)


@app.command()
def serve(
    last: Annotated[
        bool,
        typer.Option(
            "--last-good",
            help="Bring back what last served as it should: of --profile, without one of any deployment.",
        ),
    ] = False,
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
    ignore: IgnoreItemOption = None,
) -> None:
    """Preflight, then ranks up in order behind the memory gate, canary answered, smoke passed."""
    common = Common(profile, cluster, verbose=verbose, ignore=tuple(ignore or ()))
    called = Called(common, dry_run, yes, as_json)
    if last:
        whole = profile is None
        called.carry_out(
            lambda s: last_good.serve(s, any_deployment=whole, dry_run=True),
            lambda s: last_good.serve(s, any_deployment=whole),
        )
    called.carry_out(lambda s: verbs.planned(s, "serve"), lambda s: verbs.converging(s, "serve"))


def confirm(common: Common, plan: Callable[[Session], Coroutine[Any, Any, Answer]]) -> None:
    """Show the plan and ask, on a terminal."""
    try:
        answer = asyncio.run(plan(common.session(lambda _: None)))
    except SparkyardError as error:
        fail(error, as_json=False)
    plan_text(out, answer.data)
    if answer.data["stages"] and not typer.confirm("Go on?", default=True):
        raise SystemExit(int(Exit.INTERRUPTED))


for _name, _help in (
    ("build", "The same engine package on every node: made once, fetched only where it is missing."),
    ("fetch", "The pinned revision of the checkpoint on the node that shares it, every file checked."),
    ("share", "Every node reads the checkpoint, proven by comparing what is read."),
    ("unshare", "Unmount the checkpoint everywhere and take its export back."),
    ("pack", "Each node's disk holds exactly its rank's Engram rows, verified."),
    ("restart", "serve of the next generation: the running gang is drained first."),
    ("up", "build, share, pack and serve, in this order; what is done already is not done again."),
    ("stop", "Drain, end every rank, prove that they are gone and that the memory is back."),
):
    converging_verb(_name, _help)


@app.command()
def plan(
    verb: Annotated[str, typer.Argument(help="build, share, pack, serve, restart, up or stop")],
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Folder whose shard headers the memory ledger shall read."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The stages that VERB would run now; for serve and up, whether they fit memory and disks. Touches nothing."""
    if verb not in {"build", "fetch", "share", "unshare", "pack", "serve", "restart", "up", "stop"}:
        raise typer.BadParameter(f"{verb!r} is not a converging verb", param_hint="VERB")
    common = Common(profile, cluster)
    if verb in {"serve", "up"}:
        run(
            common,
            lambda s: verbs.judged(s, verb, checkpoint),
            as_json=as_json,
            show=lambda d: plan_text(out, d),
        )
    run(common, lambda s: verbs.planned(s, verb), as_json=as_json, show=lambda d: plan_text(out, d))


@app.command()
def status(
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Desired against observed, per rank. Exit 0 when it serves."""
    run(Common(profile, cluster, nodes), verbs.status, as_json=as_json, show=lambda d: status_text(out, d))


@app.command()
def doctor(
    list_checks: Annotated[
        bool, typer.Option("--list", help="Every check with what it reads, its bounds and source.")
    ] = False,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="A check to demote; may stand several times.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failures.")] = False,
    source: Annotated[
        Path | None, typer.Option("--from", help="Judge a saved capture instead of the nodes.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Also save facts and findings, redacted.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also run the load probes; refused while a rank runs.")
    ] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Offer safe repairs, each with its undo.")] = False,
    sudo: Annotated[
        bool,
        typer.Option(
            "--sudo", help="Try `sudo -n` for what needs root, also where enroll installed no rights."
        ),
    ] = False,
    yes: YesOption = False,
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
    nodes: NodesOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Look at every node's links, clocks, memory and software; name what is wrong."""
    options = diagnosis.Options(
        tuple(ignore or ()),
        strict=strict,
        source=source,
        bundle=bundle,
        verbose=verbose,
        deep=deep,
        fix=fix,
        sudo=sudo,
        yes=yes,
    )
    if list_checks:
        if as_json:
            out_json(report.list_data())
        else:
            report.print_list(out)
        raise SystemExit(int(Exit.FINE))
    try:
        diagnosis.check_ids(options.ignore)
        if source is not None:
            found = diagnosis.from_capture(options)
            answer = diagnosis.answer(found, options, None if as_json else out)
            if as_json:
                out_json(answer.data)
            raise SystemExit(int(answer.exit_code))
    except SparkyardError as error:
        fail(error, as_json=as_json)

    async def work(session: Session) -> Answer:
        return await diagnosis.visit(session, options, None if as_json else out)

    run(Common(profile, cluster, nodes, verbose), work, as_json=as_json)


@app.command()
def smoke(profile: ProfileOption = None, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Try the OpenAI API from the head: models, completion, chat, stream, a prompt that is too long."""

    def show(data: dict[str, Any]) -> None:
        for item in data["items"]:
            mark = "[green]✓[/]" if item["ok"] else "[red]✗[/]"
            out.print(f"{mark} {item['item']} [dim]{item['seconds']:.2f} s[/] ", end="", highlight=False)
            out.print(item["detail"], markup=False, highlight=False)
        if data["failure"]:
            err.print(data["failure"], markup=False, style="red")

    run(Common(profile, cluster), verbs.smoke, as_json=as_json, show=show)


@app.command()
def logs(
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank.")] = None,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            "-n",
            min=1,
            max=log_lines.LINES_MAX,
            help=f"How many last lines of each rank. Default: {log_lines.LINES_DEFAULT}, with --since all.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only from then on: 90s, 10m, 2h, 1d ago, or a time."),
    ] = None,
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
) -> None:
    """Engine logs of the newest start, by time, each line with its rank."""
    try:
        asked = log_lines.wanted(rank, lines, follow=follow, since=since)
    except SparkyardError as error:
        fail(error, as_json=False)

    def write(line: str) -> None:
        verbs.say_line(clean(line))

    run(Common(profile, cluster), lambda s: log_lines.logs(s, asked, write), as_json=False)


@app.command()
def lab(
    once: Annotated[
        bool, typer.Option("--once", help="Run the cycle, compare the answers, leave nothing behind.")
    ] = False,
    down: Annotated[bool, typer.Option("--down", help="End a lab that was left serving.")] = False,
    torch_from: Annotated[
        str | None,
        typer.Option(
            "--torch-from",
            help="Folder, wheel or index that has the CPU build of torch (SPARKYARD_TORCH_FROM).",
        ),
    ] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """The whole life cycle on this machine: three nodes, real SSH, real SGLang ranks on the CPU. No Spark needed."""
    place = lab_place()
    profile = load_profile("lab")
    try:
        with ExitStack() as stack:
            log = stack.enter_context(EventLog(verbs.events_path(place.cluster_file)))
            view = stack.enter_context(TextView(err, verbose=verbose))
            emit = partial(emit_to, [log.emit, view.emit])
            if down:
                raise SystemExit(int(asyncio.run(cycle.down(place, profile, emit))))
            data, code = asyncio.run(cycle.run(place, profile, emit, once=once, torch_from=torch_from))
    except SparkyardError as error:
        fail(error, as_json=as_json)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(int(Exit.INTERRUPTED)) from None
    if as_json:
        out_json(data)
    else:
        show_lab(data)
    raise SystemExit(int(code))


def show_lab(data: dict[str, Any]) -> None:
    """What the lab has shown, in a few lines."""
    if not data["ok"]:
        return
    out.print(
        f"{data['engine']}, {data['ranks']} ranks, tensor parallel by {data['tp']}: {data['prompts']} prompts answered "
        f"as by one unpadded rank; {data['engram_rows_read']:,} Engram rows read from disk",
        highlight=False,
    )
    out.print("try: ./start.sh status · smoke · logs -f · stop · lab --down", highlight=False)


EVERY_S, GPU_EVERY_S, GPU_EVERY_SERVING_S = 2.0, 5.0, 30.0
PaceOption = Annotated[float, typer.Option("--every", min=0.2, max=300.0, help="Seconds between samples.")]
GpuPaceOption = Annotated[
    float, typer.Option("--gpu-every", min=0.0, max=300.0, help="Seconds between GPU readings; 0: none.")
]
GpuServingOption = Annotated[
    float,
    typer.Option(
        "--gpu-every-serving", min=0.0, max=300.0, help="The same while a rank serves: each costs 0.6 ms."
    ),
]


@app.command()
def top(
    replay: Annotated[Path | None, typer.Option("--replay", help="Show this events.jsonl again.")] = None,
    speed: Annotated[float, typer.Option("--speed", min=0.125, max=1024.0, help="Of the replay.")] = 1.0,
    every: PaceOption = EVERY_S,
    gpu_every: GpuPaceOption = GPU_EVERY_S,
    gpu_every_serving: GpuServingOption = GPU_EVERY_SERVING_S,
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
) -> None:
    """The dashboard. Attaches to the monitor of this cluster if one runs, else watches by itself."""
    common = Common(profile, cluster)
    try:
        if replay is not None:
            known = common.session(lambda _: None) if profile or cluster else None
            answer = asyncio.run(dashboard.replay(replay, speed, known))
        else:
            session = common.session(lambda _: None)
            folder = verbs.events_path(common.cluster_file()).parent
            answer = asyncio.run(dashboard.top(session, folder, Pace(every, gpu_every, gpu_every_serving)))
    except SparkyardError as error:
        fail(error, as_json=False)
    raise SystemExit(int(answer.exit_code))


@app.command()
def monitor(
    address: Annotated[
        str, typer.Option("--listen", help="Beyond loopback a token file is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Of the exporter.")] = watching.PORT,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="What a scraper must send.")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep every sample in this file, for top --replay.")
    ] = None,
    every: PaceOption = EVERY_S,
    gpu_every: GpuPaceOption = GPU_EVERY_S,
    gpu_every_serving: GpuServingOption = GPU_EVERY_SERVING_S,
    observe_only: Annotated[
        bool, typer.Option("--observe-only", help="Look, ask canaries and tell; never restart anything.")
    ] = False,
    canary_every: Annotated[
        float, typer.Option("--canary-every", min=1, help="Seconds between two-token canaries.")
    ] = CANARY_PACE_S,
    canary_bound: Annotated[
        float | None, typer.Option("--canary-bound", min=1, help="Seconds that one may take.")
    ] = None,
    look_every: Annotated[
        float, typer.Option("--look-every", min=0.2, help="Seconds between two looks at the gang.")
    ] = LOOK_EVERY_S,
    key: Annotated[
        Path | None, typer.Option("--key", help="Connect to every node with this key file.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Make it a systemd service on this node, and start it.")
    ] = False,
    show_unit: Annotated[bool, typer.Option("--show-unit", help="Print the unit, change nothing.")] = False,
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
) -> None:
    """Watch the nodes, export what is seen, and keep the gang serving, until stopped."""
    if record is not None and (install or show_unit):
        raise typer.BadParameter(
            "a service keeps no samples: run the monitor in the foreground for that", param_hint="--record"
        )
    common = Common(profile, cluster)
    policy = with_canary(Policy(), canary_every, canary_bound)
    listen = watching.Listen(address, port, token_file)
    pace = Pace(every, gpu_every, gpu_every_serving)
    folder = verbs.events_path(common.cluster_file()).parent

    options: tuple[str, ...] = (
        "--canary-every",
        f"{canary_every:g}",
        "--listen",
        address,
        "--port",
        str(port),
    )
    options += ("--token-file", str(token_file.resolve())) if token_file else ()
    options += ("--observe-only",) if observe_only else ()
    options += ("--canary-bound", f"{canary_bound:g}") if canary_bound is not None else ()
    for name, asked, usual in (
        ("--every", every, EVERY_S),
        ("--gpu-every", gpu_every, GPU_EVERY_S),
        ("--gpu-every-serving", gpu_every_serving, GPU_EVERY_SERVING_S),
        ("--look-every", look_every, LOOK_EVERY_S),
    ):
        options += (name, f"{asked:g}") if asked != usual else ()

    def unit(session: Session) -> Unit:
        return watch_install.unit(session, common.cluster_file(), profile or session.profile.name, options)

    if show_unit:
        try:
            sys.stdout.write(unit(common.session(lambda _: None)).text())
        except SparkyardError as error:
            fail(error, as_json=False)
        raise SystemExit(int(Exit.FINE))
    if install:
        run(common, lambda s: watch_install.install(s, unit(s)), as_json=False)

    def work(session: Session) -> Coroutine[Any, Any, Answer]:
        if key is not None:
            session.cluster = with_key(session.cluster, key.resolve())
        beside: tuple[watching.Beside, ...] = () if record is None else (lambda feed, _: keep(feed, record),)
        beside += (Keep(session, folder, policy, look_every, acts=not observe_only),)
        return watching.monitor(session, folder, listen, pace, beside)

    run(common, work, as_json=False)


async def _measured(options: Options, choices: Choices, emit: Callable[[BenchEvent], None]) -> Record:
    session = Common(choices.profile, choices.cluster).session(lambda _: None)
    return await benchmark.measured(session, options, choices, emit)


def _is_lab(profile: str | None, cluster: Path | None) -> bool:
    path = Common(profile, cluster).cluster_file()
    return profile == "lab" or (profile is None and path == lab_place().cluster_file)


app.add_typer(bench_app(_measured, _is_lab, fail), name="bench")


add_first_contact(app, fail)


@app.command()
def maintain(
    end: Annotated[bool, typer.Option("--end", help="The work is done: the watch acts again.")] = False,
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Work on a deployment: what runs goes on running, and the monitor restarts nothing until `--end`."""
    run(Common(profile, cluster), lambda s: maintenance.maintain(s, end=end), as_json=as_json)


@app.command()
def explain(
    source: Annotated[
        Path | None, typer.Option("--from", help="Folder of evidence, or of logs collected by hand.")
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Fetch what the nodes have now instead of the newest evidence.")
    ] = False,
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read what a failed run left and name the likely cause, with the lines that show it. Exit 3 when none is known."""

    def show(data: dict[str, Any]) -> None:
        explaining.show(data, out)

    common = Common(profile, cluster)
    below = verbs.events_path(common.cluster_file()).parent / "evidence"
    if now:
        run(common, lambda s: explaining.from_nodes(s, below), as_json=as_json, show=show)
    try:
        answer = explaining.from_folder(source or explaining.newest(below))
    except SparkyardError as error:
        fail(error, as_json=as_json)
    if as_json:
        out_json(answer.data)
    else:
        show(answer.data)
    raise SystemExit(int(answer.exit_code))


@app.command()
def verify(profile: ProfileOption = None, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Hash every shard on every node that has its own files; name what is partial, mixed, dangling or zero-filled."""
    run(Common(profile, cluster), verify_checkpoint, as_json=as_json, show=show_verified)


@app.command()
def prune(
    profile: ProfileOption = None,
    cluster: ClusterOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show superseded images of ours, the published copy and build cache, with sizes; with --yes remove them."""
    run(
        Common(profile, cluster),
        lambda s: prune_images(s, remove=yes),
        as_json=as_json,
        show=show_pruned,
    )


def show_pruned(data: dict[str, Any]) -> None:
    """One line an item, and what to do next."""
    for node, found in data["nodes"].items():
        for item in found["items"]:
            out.print(f"{node}: {item['what']}: {item['bytes']:,} bytes", markup=False)
    word = "removed" if data["removed"] else "would be removed; say --yes to remove them"
    out.print(f"{data['bytes']:,} bytes {word}")


def show_verified(data: dict[str, Any]) -> None:
    """One line a node, one line a fault."""
    for node, found in data["nodes"].items():
        out.print(f"{node}: {found['files']} files hashed, {found['unknown']} without a known digest")
        for words in found["faults"]:
            out.print(f"  {words}", markup=False)


def main() -> None:
    """Entry. Typer's usage errors already exit with 2."""
    app()
