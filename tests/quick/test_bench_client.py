"""The load client against a stand-in server whose rate and counts are known."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from orchestrator.bench.figures import decode_round
from orchestrator.bench.options import Options
from orchestrator.bench.progress import BenchEvent, CellEnded, Remarked, RoundEnded
from orchestrator.bench.record import Cache, Measure, PromptKind, Provenance, Record
from orchestrator.bench.run import run_bench
from orchestrator.bench.source import LoadPlan, StreamPlan, local
from orchestrator.errors import Exit, SparkyardError, Undetermined

STANDIN = Path(__file__).parents[1] / "standin.py"
SMALL = Options(
    kinds=(PromptKind.PROSE, PromptKind.CODE),
    streams=(1, 2),
    other_streams=(2,),
    prompt_tokens=64,
    output_tokens=24,
    prefill_tokens=(600,),
    needle_tokens=400,
    chat_behind_tokens=3000,
    agent_turns=3,
    agent_turn_tokens=100,
    agent_reply_tokens=8,
    capacity_streams=4,
)


@contextlib.asynccontextmanager
async def standin(*options: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(STANDIN), *options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{json.loads(await process.stdout.readline())['port']}"
    finally:
        process.terminate()
        await process.wait()


def body(output_tokens: int, content: str = "a few words to begin with") -> dict[str, object]:
    return {
        "model": "stand-in",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": output_tokens,
        "messages": [{"role": "user", "content": content}],
    }


def plan(url: str, streams: int, output_tokens: int) -> LoadPlan:
    stream = StreamPlan((body(output_tokens),))
    return LoadPlan(f"{url}/v1/chat/completions", (stream,) * streams, timeout_s=20.0)


async def small_run(url: str, events: list[BenchEvent], options: Options = SMALL) -> Record:
    return await run_bench(url, options, Provenance(boot_id="one"), events.append)


def test_a_known_rate_is_reported() -> None:
    async def measure() -> tuple[dict[str, float], float]:
        async with standin("--rate", "200") as url, local() as source:
            result = await source.run(plan(url, 4, 400), lambda _seen, _at_s: None)
            return decode_round(result.samples), result.cpu_s / result.wall_s

    figures, cpu_share = asyncio.run(measure())
    # On a busy machine; tests/bench/bench_client.py holds the client to 2 % at fifty times the rate.
    assert figures["decode_tok_s"] == pytest.approx(800, rel=0.1)
    assert figures["stream_tok_s"] == pytest.approx(200, rel=0.1)
    assert 0 < cpu_share < 1


def test_several_tokens_an_event_are_counted_as_tokens() -> None:
    async def measure() -> dict[str, float]:
        async with standin("--rate", "300", "--tokens-per-event", "4") as url, local() as source:
            return decode_round((await source.run(plan(url, 2, 600), lambda _s, _t: None)).samples)

    figures = asyncio.run(measure())
    assert figures["tokens_per_event"] == pytest.approx(4, rel=0.02)
    assert figures["stream_tok_s"] == pytest.approx(300, rel=0.1)


def test_token_counts_equal_those_of_the_openai_client() -> None:
    async def measure() -> tuple[tuple[int, int, str], tuple[int, int, str]]:
        async with standin("--rate", "2000") as url, local() as source:
            ours = (await source.run(plan(url, 1, 40), lambda _s, _t: None)).samples[0]
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
            text, usage = "", None
            stream = await client.chat.completions.create(
                model="stand-in",
                messages=[{"role": "user", "content": "a few words to begin with"}],
                max_tokens=40,
                stream=True,
                stream_options={"include_usage": True},
            )
            async for chunk in stream:
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                usage = chunk.usage or usage
            assert usage is not None
            return (
                (ours.prompt_tokens, ours.completion_tokens, ours.text),
                (usage.prompt_tokens, usage.completion_tokens, text),
            )

    ours, theirs = asyncio.run(measure())
    assert ours == theirs


def test_a_run_measures_everything_and_its_record_reads_back() -> None:
    events: list[BenchEvent] = []

    async def measure() -> Record:
        async with standin("--rate", "1000", "--prefill-rate", "20000") as url:
            return await small_run(url, events)

    record = asyncio.run(measure())
    assert Record.model_validate_json(record.model_dump_json(by_alias=True)) == record
    cells = [(row.measure, row.kind, row.streams, row.cache) for row in record.rows]
    assert cells[:3] == [
        (Measure.DECODE, PromptKind.PROSE, 1, Cache.COLD),
        (Measure.DECODE, PromptKind.PROSE, 2, Cache.COLD),
        (Measure.DECODE, PromptKind.CODE, 2, Cache.COLD),
    ]
    assert {measure for measure, *_ in cells} == set(Measure)
    assert all(row.errors == 0 for row in record.rows), [row.notes for row in record.rows]
    cold, warm = (
        next(row for row in record.rows if (row.measure, row.cache) == (Measure.PREFILL, cache))
        for cache in (Cache.COLD, Cache.WARM)
    )
    assert cold.prompt_tokens == pytest.approx(600, rel=0.1)
    assert cold.prompts_sha256 == warm.prompts_sha256
    assert cold.figure("prefill_tok_s").median < warm.figure("prefill_tok_s").median  # type: ignore[union-attr]
    assert not [note for note in cold.notes if "not cold" in note]
    behind = next(row for row in record.rows if row.measure is Measure.CHAT_BEHIND_PREFILL)
    assert {figure.name for figure in behind.figures} >= {"ttft_alone_ms", "ttft_behind_ms"}
    assert record.capacity is not None
    assert (record.capacity.streams, record.capacity.bounded_by) == (4, "limit")
    assert record.provenance.context_limit_tokens == 200_000
    assert record.steps is not None
    assert record.steps.ranks[0].parts[0].what == "run_batch"
    assert sum(isinstance(event, CellEnded) for event in events) == len(record.rows)


def test_an_interrupted_run_keeps_what_is_measured() -> None:
    events: list[BenchEvent] = []

    async def measure() -> Record:
        second_round = asyncio.Event()

        def emit(event: BenchEvent) -> None:
            events.append(event)
            if isinstance(event, RoundEnded) and event.number == 2:
                second_round.set()

        async with standin("--rate", "200") as url:
            endless = SMALL.model_copy(update={"rounds": 50})
            task = asyncio.create_task(run_bench(url, endless, Provenance(), emit))
            await second_round.wait()
            task.cancel()
            return await task

    record = asyncio.run(measure())
    assert record.interrupted
    assert record.rows[0].figures[0].rounds >= 2
    assert any(isinstance(event, Remarked) and "interrupted" in event.text for event in events)


def test_a_run_that_fails_late_keeps_what_is_measured() -> None:
    async def used_up() -> Record:
        async with standin("--rate", "4000") as url:
            prose = {"prefill_tokens": (180_000,), "prefill_kind": PromptKind.PROSE, "rounds": 4}
            return await small_run(url, [], SMALL.model_copy(update=prose))

    record = asyncio.run(used_up())
    assert "the prose text is used up" in record.failure
    assert not record.interrupted
    assert [row.measure for row in record.rows][:3] == [Measure.DECODE] * 3


def test_failing_requests_bound_the_capacity() -> None:
    async def measure() -> Record:
        async with standin("--rate", "1000", "--fail-above", "2") as url:
            only = SMALL.model_copy(
                update={"kinds": (PromptKind.PROSE,), "streams": (1,), "needle_tokens": 0}
            )
            return await small_run(
                url, [], only.model_copy(update={"chat_behind_tokens": 0, "agent_turns": 0})
            )

    capacity = asyncio.run(measure()).capacity
    assert capacity is not None
    assert (capacity.streams, capacity.bounded_by) == (2, "slo")
    assert "at 3 streams: requests fail" in capacity.breaks_first


def test_no_server_is_undetermined_and_a_refusing_one_an_error() -> None:
    with pytest.raises(Undetermined, match=r"no answer at http://127\.0\.0\.1:1/v1/models") as caught:
        asyncio.run(small_run("http://127.0.0.1:1", []))
    assert caught.value.exit_code is Exit.UNDETERMINED

    async def refused() -> None:
        async with standin("--fail-above", "-1") as url:
            await small_run(url, [])

    with pytest.raises(SparkyardError, match="refuses a first short request: HTTP 503"):
        asyncio.run(refused())
