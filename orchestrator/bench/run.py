"""One benchmark run, from the first look at the endpoint to the record."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from orchestrator.bench import texts
from orchestrator.bench.capacity import Verdict, conclude, judge, next_streams
from orchestrator.bench.endpoint import OK, accept_length, completed, look
from orchestrator.bench.figures import NOISY_SPREAD
from orchestrator.bench.obstacles import LEADING
from orchestrator.bench.options import Options
from orchestrator.bench.progress import BenchEvent, Remarked
from orchestrator.bench.record import (
    Capacity,
    Measure,
    Method,
    NodeSample,
    Provenance,
    Record,
    Row,
    Speculation,
    Steps,
    during,
)
from orchestrator.bench.scenarios import Scenarios
from orchestrator.bench.source import LoadFailed, LoadSource, local
from orchestrator.bench.steps import Page, step_view, with_clocks
from orchestrator.errors import SparkyardError

Emit = Callable[[BenchEvent], None]
Watch = Callable[[], Awaitable[tuple[NodeSample, ...]]]
Scrape = Callable[[], Awaitable[Mapping[int, str]]]


@dataclass(slots=True)
class _Run:
    options: Options
    scenarios: Scenarios
    emit: Emit
    scrape: Scrape
    rows: list[Row] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    pages: list[Mapping[int, Page]] = field(default_factory=list)

    def keep(self, row: Row | None) -> None:
        if row is not None:
            self.rows.append(row)

    def keep_open_cell(self) -> None:
        """The rounds of a row that was being measured when the run ended."""
        if self.scenarios.open_cell is not None:
            self.keep(self.scenarios.open_cell.row())

    async def everything(self, context_limit_tokens: int | None) -> None:
        options, scenarios = self.options, self.scenarios
        for kind in dict.fromkeys((*options.kinds, options.prefill_kind)):
            await scenarios.prompts(kind)
        await self.read_pages()
        for number, kind in enumerate(options.kinds):
            for streams in options.streams if number == 0 else options.other_streams:
                self.keep(await scenarios.decode(kind, streams))
        await self.read_pages()
        lengths = options.lengths(context_limit_tokens)
        for length in lengths:
            self.rows += await scenarios.prefill(length)
        for tokens, measure in (
            (options.needle_tokens, scenarios.needle),
            (options.chat_behind_tokens, scenarios.chat_behind_prefill),
        ):
            if tokens != 0:
                self.keep(await measure(lengths[-1] if tokens is None else tokens))
        if options.agent_turns:
            self.keep(await scenarios.agent_chain())
        if options.slo is not None:
            await self.search_capacity()

    async def search_capacity(self) -> None:
        slo, kind = self.options.slo, self.options.kinds[0]
        assert slo is not None  # noqa: S101 - the caller has looked
        for row in self.rows:
            if (row.measure, row.kind) == (Measure.DECODE, kind):
                self.verdicts[row.streams] = judge(row, slo)
        limit = self.options.capacity_streams
        while (wanted := next_streams(_holds(self.verdicts), limit)) is not None:
            tried = await self.scenarios.decode(kind, wanted)
            if tried is None:
                return
            self.rows.append(tried)
            self.verdicts[wanted] = judge(tried, slo)

    async def read_pages(self) -> None:
        try:
            self.pages.append({rank: Page.parse(text) for rank, text in (await self.scrape()).items()})
        except (LoadFailed, ValueError) as problem:
            self.emit(
                Remarked(f"no step view: the metrics cannot be read ({type(problem).__name__}: {problem})")
            )

    def capacity(self, *, unfinished: bool) -> Capacity | None:
        slo = self.options.slo
        if slo is None or not self.verdicts:
            return None
        limit = self.options.capacity_streams
        open_ended = unfinished and next_streams(_holds(self.verdicts), limit) is not None
        return conclude(
            self.verdicts, slo=slo, kind=self.options.kinds[0], limit=limit, interrupted=open_ended
        )

    def steps(self) -> Steps | None:
        return step_view(self.pages[0], self.pages[1]) if len(self.pages) > 1 else None


def _holds(verdicts: Mapping[int, Verdict]) -> dict[int, bool]:
    return {streams: verdict.holds for streams, verdict in verdicts.items()}


def noisy_rows(rows: tuple[Row, ...]) -> tuple[str, ...]:
    """Rows whose leading figure spreads wider than `NOISY_SPREAD`, in words."""
    said = []
    for row in rows:
        figure = row.figure(LEADING[row.measure])
        if figure is not None and figure.rounds > 1 and figure.spread > NOISY_SPREAD:
            said.append(
                f"{row.measure} {row.kind} × {row.streams} {row.cache}: {figure.name} from {figure.low:.4g} "
                f"to {figure.high:.4g} {figure.unit}, {figure.spread:.0%} of the median"
            )
    return tuple(said)


@contextlib.asynccontextmanager
async def _watching(watch: Watch | None, interval_s: float, emit: Emit) -> AsyncIterator[list[NodeSample]]:
    """Looks at the nodes at the beginning, every `interval_s`, and at the end."""
    samples: list[NodeSample] = []
    if watch is None:
        yield samples
        return

    async def repeat() -> None:
        while True:
            samples.extend(await watch())
            await asyncio.sleep(interval_s)

    task = asyncio.create_task(repeat())
    try:
        yield samples
    finally:
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(ended, Exception):
            emit(Remarked(f"the nodes were watched only until {type(ended).__name__}: {ended}"))
        else:
            samples.extend(await watch())


async def run_bench(
    base_url: str,
    options: Options,
    provenance: Provenance,
    emit: Emit,
    *,
    name: str = "",
    source: LoadSource | None = None,
    api_key: str | None = None,
    watch: Watch | None = None,
    scrape: Scrape | None = None,
) -> Record:
    """Measures an endpoint and returns the record. Cancelling it ends the run early and keeps what is
    measured.

    Args:
        base_url: the endpoint as the load source reaches it, without `/v1`.
        options: what to measure.
        provenance: what the caller knows of the deployment; the endpoint's own words fill gaps.
        emit: receives progress.
        name: what the record is called; empty: the model and the time.
        source: where load comes from; None: a process on this machine.
        api_key: sent as a bearer token, never recorded.
        watch: looks at the nodes once; None: nothing is known of them.
        scrape: the metrics page of each rank, by rank; None: rank 0's at `base_url`.

    Raises:
        Undetermined: nothing answers.
        SparkyardError: the endpoint refuses a first request, or the load generator fails, before any row is
            measured; later the record says it in `failure`.
    """
    base_url = base_url.rstrip("/")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    began = time.time()
    async with contextlib.AsyncExitStack() as stack:
        load = await stack.enter_async_context(local()) if source is None else source
        endpoint = await look(load, base_url, headers)
        known = completed(provenance, endpoint)
        limit = known.context_limit_tokens

        async def own_page() -> Mapping[int, str]:
            page = await load.get(f"{base_url}/metrics", headers)
            if page.status != OK:
                raise LoadFailed(f"{base_url}/metrics answers {page.status}")
            return {0: page.text}

        scenarios = Scenarios(load, base_url, endpoint.model, options, limit, emit, headers)
        run = _Run(options, scenarios, emit, scrape or own_page)
        interrupted, failure = False, ""
        nodes = await stack.enter_async_context(_watching(watch, options.sample_interval_s, emit))
        try:
            await run.everything(limit)
            if isinstance(known.speculation, Speculation):
                accepted = accept_length(await look(load, base_url, headers))
                known = known.model_copy(
                    update={"speculation": known.speculation.model_copy(update={"accept_length": accepted})}
                )
        except asyncio.CancelledError:
            interrupted = True
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            run.keep_open_cell()
            emit(Remarked("interrupted: what was measured so far is kept"))
        except SparkyardError as problem:
            run.keep_open_cell()
            if not run.rows:
                raise
            failure = str(problem)
            emit(Remarked(f"{failure}; what was measured so far is kept"))
    ended = time.time()
    rows, seen = tuple(run.rows), during(tuple(nodes))
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began))
    return Record(
        schema="sparkyard/bench/v1",
        name=name or f"{endpoint.model} {moment}",
        origin="ours",
        started_unix_s=began,
        ended_unix_s=ended,
        interrupted=interrupted,
        failure=failure,
        method=Method(
            load_from=load.place,
            endpoint=options.endpoint,
            rounds=options.rounds,
            warm_up_rounds=options.warm_up_rounds,
            seed=options.seed,
            temperature=options.temperature,
            ignore_eos=options.ignore_eos,
            text=texts.description(),
        ),
        provenance=known,
        rows=rows,
        capacity=run.capacity(unfinished=interrupted or bool(failure)),
        steps=with_clocks(run.steps(), seen),
        nodes=seen,
        noisy=(
            *noisy_rows(rows),
            *(f"{node.node}: {node.foreign_load}" for node in seen if node.foreign_load),
        ),
    )
