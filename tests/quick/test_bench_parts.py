"""Figures, the capacity search and the step view, as pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench.capacity import Verdict, conclude, next_streams
from orchestrator.bench.figures import decode_round, quantile, together_rate
from orchestrator.bench.loadgen.stream import Sample, absorb, parse_event
from orchestrator.bench.record import NodeDuring, PromptKind, Slo
from orchestrator.bench.steps import Page, step_view, with_clocks


def stream(number: int, first_s: float, gap_s: float, events: int, tokens: int) -> Sample:
    times = [first_s + gap_s * place for place in range(events)]
    return Sample(
        stream=number,
        index=0,
        start_s=0.0,
        token_times_s=times,
        end_s=times[-1],
        prompt_tokens=10,
        completion_tokens=tokens,
    )


@given(
    rates=st.lists(st.floats(20, 200), min_size=1, max_size=8),
    per_event=st.integers(1, 6),
    delay_s=st.floats(0.01, 1.0),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_the_rate_together_is_the_sum_of_the_streams_rates(
    rates: list[float], per_event: int, delay_s: float
) -> None:
    samples = []
    for number, rate in enumerate(rates):
        events = int(20 * rate / per_event)
        samples.append(stream(number, delay_s + 1e-3 * number, per_event / rate, events, events * per_event))
    assert together_rate(samples) == pytest.approx(sum(rates), rel=0.02)


def test_streams_that_hardly_overlap_are_counted_over_all_their_time() -> None:
    apart = [stream(0, 0.0, 0.1, 11, 11), stream(1, 0.9, 0.1, 11, 11)]
    assert together_rate(apart) == pytest.approx(21 / 1.9)
    assert together_rate([stream(0, 1.0, 0.1, 1, 1)]) is None


def test_a_failed_stream_is_left_out_of_the_figures() -> None:
    good, bad = stream(0, 0.5, 0.1, 11, 11), Sample(stream=1, index=0, start_s=0.0, error="HTTP 503")
    figures = decode_round([good, bad])
    assert figures["stream_tok_s"] == pytest.approx(10.0)
    assert figures["ttft_p50_ms"] == pytest.approx(500.0)
    assert decode_round([bad]) == {}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_quantiles_lie_between_the_extremes(values: list[float], share: float) -> None:
    assert min(values) - 1e-6 <= quantile(values, share) <= max(values) + 1e-6


@given(capacity=st.integers(0, 200), limit=st.integers(1, 150))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_the_search_finds_the_capacity_in_few_tries(capacity: int, limit: int) -> None:
    tried: dict[int, bool] = {}
    while (streams := next_streams(tried, limit)) is not None:
        assert streams not in tried
        assert 1 <= streams <= limit
        tried[streams] = streams <= capacity
        assert len(tried) <= 17
    verdicts = {streams: Verdict(holds, "" if holds else "slow") for streams, holds in tried.items()}
    found = conclude(verdicts, slo=Slo(), kind=PromptKind.PROSE, limit=limit, interrupted=False)
    assert found.streams == min(capacity, limit)
    assert found.bounded_by == ("limit" if capacity >= limit else "slo")


def test_the_smallest_failure_decides_where_the_service_is_not_monotonic() -> None:
    tried = {1: True, 2: False, 4: True}
    assert next_streams(tried, 64) is None
    verdicts = {streams: Verdict(holds, "slow") for streams, holds in tried.items()}
    found = conclude(verdicts, slo=Slo(), kind=PromptKind.PROSE, limit=64, interrupted=False)
    assert (found.streams, found.breaks_first) == (1, "at 2 streams: slow")


def test_events_of_every_dialect_are_understood() -> None:
    lines = (
        b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
        b": a comment",
        b'data: {"choices":[{"delta":{"reasoning_content":"think"}}]}',
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}',
        b'data: {"choices":[{"text":" done","finish_reason":"stop"}]}',
        b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}',
        b'data: {"usage":{"prompt_tokens":7,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}',
        b"data: [DONE]",
    )
    sample = Sample(stream=0, index=0, start_s=0.0)
    absorb(sample, [(float(place), line) for place, line in enumerate(lines)])
    assert sample.text == "thinkf{} done"
    assert sample.token_times_s == [2.0, 3.0, 4.0]
    assert (sample.prompt_tokens, sample.completion_tokens, sample.cached_tokens) == (7, 9, 4)
    assert (sample.finish_reason, sample.error) == ("stop", "")


@given(st.binary(max_size=200))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_any_event_parses_or_is_a_value_error(event: bytes) -> None:
    try:
        value = parse_event(event)
    except ValueError:
        return
    assert value is None or isinstance(value, dict)


def page(passes: int, run_s: float, read_s: float, rows: int) -> Page:
    rank = 'tp_rank="0"'
    return Page.parse(
        f'sglang:cuda_graph_passes_total{{mode="decode_full",{rank}}} {passes}\n'
        f'sglang:cuda_graph_passes_total{{mode="prefill_none",{rank}}} 2\n'
        f'sglang:scheduler_stage_seconds_total{{category="run_batch",forward_overlap="none",{rank}}} {run_s}\n'
        f'sglang:scheduler_stage_seconds_total{{category="idle",forward_overlap="none",{rank}}} 50\n'
        f"sglang:scheduler_idle_seconds_total{{{rank}}} 50\n"
        f"sparkyard_engram_rows_read_total{{{rank}}} {rows}\n"
        f"sparkyard_engram_read_seconds_total{{{rank}}} {read_s}\n"
    )


def test_the_step_view_prices_the_slowest_rank() -> None:
    before = {rank: page(10, 1.0, 0.1, 100) for rank in range(3)}
    after = {0: page(110, 7.0, 0.2, 900), 1: page(110, 7.0, 0.2, 900), 2: page(110, 7.0, 1.4, 900)}
    view = step_view(before, after)
    assert [rank.steps for rank in view.ranks] == [100, 100, 100]
    assert view.ranks[0].step_s == pytest.approx(0.06)
    assert view.ranks[0].engram_rows_per_step == pytest.approx(8)
    assert view.slowest_rank == 2
    assert view.slow_rank_cost == pytest.approx((0.013 - 0.001) / 0.06)
    reads = next(part for part in view.ranks[2].parts if part.what == "engram reads")
    assert reads.share == pytest.approx(0.013 / 0.06)


def test_a_slow_clock_bounds_what_its_rank_may_cost() -> None:
    steps = step_view({}, {})
    clocks = {0: 2400.0, 1: 850.0, 2: 2380.0}
    nodes = [
        NodeDuring(node=f"spark{rank}", rank=rank, samples=3, sm_clock_high_mhz=clock)
        for rank, clock in clocks.items()
    ]
    found = with_clocks(steps, nodes)
    assert found is not None
    (note,) = found.notes[len(steps.notes) :]
    assert note == (
        "rank 1: the GPU of spark1 ran at 850 MHz at most, its peers' at 2390: up to 64% of a step may be all "
        "others waiting for it"
    )
    assert with_clocks(steps, nodes[:1]) is steps
    assert with_clocks(None, nodes) is None


def test_a_server_without_metrics_gives_no_steps_and_says_so() -> None:
    view = step_view({0: Page.parse("")}, {0: Page.parse("")})
    assert view.ranks == ()
    assert "no rank counted a decode step" in view.notes[0]
