"""bench: measure the deployment that serves, from a worker, with everything that is known about it beside the
figures."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import ValidationError

from orchestrator.bench.cli import Choices, api_key
from orchestrator.bench.foreign import Busy, Foreign, foreign
from orchestrator.bench.known import CONTROLLER, newest_ranks, node_sample, place, provenance
from orchestrator.bench.options import Options
from orchestrator.bench.progress import BenchEvent, Remarked
from orchestrator.bench.record import NodeSample, Record
from orchestrator.bench.run import Watch, run_bench
from orchestrator.bench.source import LoadFailed, LoadSource, NodeLoad, local
from orchestrator.each import each
from orchestrator.errors import Undetermined
from orchestrator.examination import diagnose
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.goal import Goal
from orchestrator.model.sample import NodeSampled, NodeSilent, Sample, Watched
from orchestrator.remote.node import Ask, Reply, reply
from orchestrator.run import World, observe
from orchestrator.verbs import Session
from orchestrator.watch.samples import Pace, watch

SAMPLE_EVERY_S = 5.0
BUSY_EVERY_S = 10.0
BUSY_TIMEOUT_S = 15.0
GPU_SERVING_EVERY_S = 15.0  # asking nvidia-smi every 2 s costs 0.6 ms a decode step on GB10
METRICS_OK = 200


async def measured(
    session: Session, options: Options, choices: Choices, emit: Callable[[BenchEvent], None]
) -> Record:
    """Looks at the deployment, measures it, gives the record. Cancelling keeps what is measured.

    Raises:
        Undetermined: no node answers, or no rank of the profile lives.
        ConfigError: the load cannot come from where it should, or the API key cannot be read.
        SparkyardError: as `run_bench`.
    """
    goal, _ = session.goal()
    where = place(goal, choices.load_from)
    known = session.profile.ports.api_key_file
    key = api_key(choices.key_file or (Path(known) if known else None))
    async with session.world() as world:
        found = await diagnose(world, goal)
        facts = await observe(world)
        if not newest_ranks(goal, facts):
            raise Undetermined(f"bench: no rank of {session.profile.name} lives; `sparkyard up` starts it")
        if where.remark:
            emit(Remarked(where.remark))
        async with _source(world, where.node) as source, _watching(world, goal, emit) as look:
            return await run_bench(
                where.base_url,
                options,
                provenance(
                    goal, facts, {node.name: node.hardware for node in found.yard.nodes}, found.findings
                ),
                emit,
                name=choices.name,
                source=source,
                api_key=key,
                watch=look,
                scrape=lambda: _pages(world, goal, facts),
            )


@asynccontextmanager
async def _source(world: World, name: str) -> AsyncIterator[LoadSource]:
    if name != CONTROLLER:
        yield NodeLoad(world.nodes[name])
        return
    async with local(CONTROLLER) as source:
        yield source


@asynccontextmanager
async def _watching(world: World, goal: Goal, emit: Callable[[BenchEvent], None]) -> AsyncIterator[Watch]:
    """Watches all nodes meanwhile; the function gives what was seen since it was last called."""
    first: dict[str, Sample] = {}
    seen: list[NodeSample] = []
    others: dict[str, Foreign] = {}

    def take(happened: Watched) -> None:
        match happened:
            case NodeSampled(node=node, sample=sample):
                found = node_sample(node, sample, first.setdefault(node, sample), goal.profile)
                load = others.pop(node, None)
                more = {"foreign_cores": load.cores, "foreign_load": load.text} if load else {}
                seen.append(found.model_copy(update=more))
            case NodeSilent(node=node, failure=failure):
                emit(Remarked(f"{node} is not watched: {failure.message}"))
            case _:
                pass

    async def look() -> tuple[NodeSample, ...]:
        news = tuple(seen)
        seen.clear()
        return news

    pace = Pace(every_s=SAMPLE_EVERY_S, gpu_every_s=SAMPLE_EVERY_S, gpu_serving_every_s=GPU_SERVING_EVERY_S)
    tasks = {
        asyncio.create_task(watch(world.nodes, take, pace)),
        asyncio.create_task(_others(world, goal, others.update)),
    }
    try:
        yield look
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _others(world: World, goal: Goal, take: Callable[[Mapping[str, Foreign]], None]) -> None:
    """What else works on the nodes, for as long as nobody cancels it. A node that does not answer is left out."""
    one_host = goal.cluster.topology == "single-host"
    asked = Ask("busy", {})
    before: dict[str, Busy] = {}
    while True:
        replies = await each(
            world.nodes, lambda name: reply(world.nodes[name], asked, timeout_s=BUSY_TIMEOUT_S)
        )
        after = {name: busy for name, answer in replies.items() if (busy := _busy(answer)) is not None}
        take(foreign(before, after, frozenset({os.getpid()}), one_host=one_host))
        before = after
        await asyncio.sleep(BUSY_EVERY_S)


def _busy(answer: Reply) -> Busy | None:
    try:
        return None if answer.failure is not None else Busy.model_validate(answer.value)
    except ValidationError:
        return None


async def _pages(world: World, goal: Goal, facts: ClusterFacts) -> Mapping[int, str]:
    """The metrics page of every rank, each read on its own node."""
    ranks = newest_ranks(goal, facts)

    async def one(name: str) -> str:
        node = goal.cluster.node(name)
        url = f"http://127.0.0.1:{goal.port(node, goal.profile.ports.api)}/metrics"
        page = await NodeLoad(world.nodes[name]).get(url, {})
        if page.status != METRICS_OK:
            raise LoadFailed(f"{name}: {url} answers {page.status}")
        return page.text

    pages = await asyncio.gather(*(one(name) for name, _rank in ranks))
    return {rank.rank: page for (_name, rank), page in zip(ranks, pages, strict=True)}
