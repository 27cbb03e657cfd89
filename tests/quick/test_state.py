"""State is a fold: rates, gaps, restarts of counters, and the sentence at the top."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.watch.page import parse
from orchestrator.model.event import Looked, RunEnded, Said, StepDone, StepFailed
from orchestrator.model.facts import PHASES
from orchestrator.model.sample import (
    BreakerMoved,
    GangRestarted,
    NodeSampled,
    Sample,
    happened_from_json,
    happened_json,
)
from orchestrator.model.step import Failure
from orchestrator.view.headline import SHARE, cables, situation
from orchestrator.view.rates import quantile, rate
from orchestrator.view.state import State, empty, fold, fold_all
from tests import watched
from tests.watched import BEGIN_UNIX_S, EVERY_S, STORIES, cluster, profile, sample, story, told


def node(state: State, number: int) -> Any:
    return state.nodes[f"spark-{number}"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("serving", "serving"),
        ("degraded", "degraded: spark-2 half of p0 is down"),
        ("down", "down: rank 2 on spark-3 ended: memory_floor: MemAvailable was 3.1 GiB"),
    ],
)
def test_the_sentence_that_matters(name: str, sentence: str) -> None:
    told_story = STORIES[name]()
    found = situation(told_story.state(), told_story.now_unix_s)
    assert found.kind == name
    assert found.sentence.startswith(sentence)


def test_every_reason_of_a_degraded_service_is_listed() -> None:
    told_story = watched.degraded()
    reasons = situation(told_story.state(), told_story.now_unix_s).reasons
    for words in ("half of p0 is down", "enp1s0f1np1 at 13 Gb/s", "rank 2 take 3.2×", "moves 13.1 Gb/s"):
        assert any(words in reason for reason in reasons), (words, reasons)


def test_a_boot_has_progress_and_an_estimate_that_shrinks() -> None:
    told_story = watched.booting()
    lines = told_story.lines
    early = fold_all(empty(profile(), cluster()), lines[:12])
    before = situation(early, early.now_unix_s)
    after = situation(told_story.state(), told_story.now_unix_s)
    assert before.kind == after.kind == "booting"
    assert after.progress is not None
    assert before.progress is not None
    assert after.progress > before.progress
    assert "ETA" not in after.sentence
    assert "left" in after.sentence


def test_the_share_of_a_boot_grows_with_its_phases() -> None:
    shares = [SHARE[phase] for phase in PHASES[:6]]
    assert shares == sorted(shares)
    assert SHARE["ready"] == 1.0


def test_rates_are_those_of_the_counters() -> None:
    state = story(told(3)).state()
    link = node(state, 1).links[0]
    grown = sample(0, 2)["links"][0]["sent_bytes"] - sample(0, 1)["links"][0]["sent_bytes"]
    assert link.sent_per_s == pytest.approx(grown / EVERY_S)
    assert node(state, 1).ranks[0].rows_per_s == pytest.approx(96 * 120 / EVERY_S)
    assert node(state, 1).ranks[0].hit_ratio == pytest.approx(0.25)
    assert state.engine is not None
    assert state.engine.generated_per_s == pytest.approx((120 + 6) / EVERY_S)


def test_a_gap_is_a_gap() -> None:
    told_story = watched.down()
    state = told_story.state()
    here = node(state, 2)
    assert not here.known(told_story.now_unix_s)
    assert [link.sent_per_s for link in here.links] == [None] * 4
    assert here.links[0].peak_per_s is None
    # and after the gap the first sample brings no rate over it
    late = Sample.model_validate(sample(1, 60))
    back = node(fold(state, NodeSampled("spark-2", late), BEGIN_UNIX_S + 120), 2)
    assert back.known(BEGIN_UNIX_S + 121)
    assert back.links[0].sent_per_s is None
    assert back.connections == here.connections + 1


def test_silence_without_a_word_is_noticed() -> None:
    told_story = watched.serving()
    state = told_story.state()
    assert situation(state, told_story.now_unix_s).kind == "serving"
    assert situation(state, told_story.now_unix_s + 30).kind == "unknown"


def test_a_reboot_restarts_counters_and_makes_no_rate() -> None:
    state = story(told(10)).state()
    body = sample(0, 0) | {"boot_id": "after", "monotonic_s": 12.0}
    after = node(fold(state, NodeSampled("spark-1", Sample.model_validate(body)), BEGIN_UNIX_S + 20), 1)
    assert after.links[0].sent_per_s is None
    assert after.ranks[0].rows_per_s is None


def test_a_restarted_engine_makes_no_negative_rate() -> None:
    state = story(told(10)).state()
    for tick in (10, 11):
        body = sample(0, tick)
        body["engine"] = watched.page(tick - 10)
        body["ranks"][0]["engram"] = sample(0, tick - 10)["ranks"][0]["engram"]
        state = fold(state, NodeSampled("spark-1", Sample.model_validate(body)), BEGIN_UNIX_S + 2 * tick)
    assert state.engine is not None
    assert state.engine.generated_per_s == pytest.approx(126 / EVERY_S)
    assert node(state, 1).ranks[0].rows_per_s == pytest.approx(96 * 120 / EVERY_S)


def test_a_link_that_vanishes_is_down_and_stays_shown() -> None:
    state = story(told(3)).state()
    body = sample(0, 3)
    del body["links"][1]
    after = node(fold(state, NodeSampled("spark-1", Sample.model_validate(body)), BEGIN_UNIX_S + 6), 1)
    gone = [view for view in after.links if view.link.state == "gone"]
    assert [view.link.netdev for view in gone] == ["enp1s0f1np1"]
    assert (
        "spark-1 half of p1 is down"
        in situation(
            fold(state, NodeSampled("spark-1", Sample.model_validate(body)), BEGIN_UNIX_S + 6),
            BEGIN_UNIX_S + 6,
        ).reasons
    )


def test_an_empty_cage_behind_a_switch_is_no_fault() -> None:
    told_story = watched.serving(nodes=4)
    found = situation(told_story.state(), told_story.now_unix_s)
    assert (found.kind, found.reasons) == ("serving", ())


def test_a_latched_clock_is_told_from_an_idle_one() -> None:
    def latched(index: int, tick: int, body: dict[str, Any]) -> None:
        if index == 1 and tick > 20:
            body["gpu"] |= {"sm_mhz": 641.0, "power_w": 15.0}

    def idle(index: int, tick: int, body: dict[str, Any]) -> None:
        if index == 1 and tick > 20:
            body["gpu"] |= {"sm_mhz": 208.0, "power_w": 4.0, "utilization_percent": 0.0}

    bad = story(told(40, change=latched))
    good = story(told(40, change=idle))
    assert "spark-2 GPU clock latched at 641 MHz under load" in situation(bad.state(), bad.now_unix_s).reasons
    assert situation(good.state(), good.now_unix_s).kind == "serving"
    assert node(good.state(), 2).clock_ratio is None


def test_cables_of_a_triangle() -> None:
    found = cables(story(told(1)).state())
    assert len(found) == 6
    assert {frozenset((cable.a[0], cable.b[0])) for cable in found if cable.b} == {
        frozenset(pair) for pair in (("spark-1", "spark-2"), ("spark-2", "spark-3"), ("spark-1", "spark-3"))
    }


def test_restarts_and_the_breaker() -> None:
    state = story(told(2)).state()
    state = fold(state, GangRestarted("d", 5, "rank 1 ended"), BEGIN_UNIX_S + 3)
    state = fold(state, BreakerMoved("d", open=True, why="3 restarts in 10 min"), BEGIN_UNIX_S + 4)
    assert state.restarts == 1
    found = situation(state, BEGIN_UNIX_S + 4)
    assert found.sentence == "down: circuit breaker open: 3 restarts in 10 min"


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_story_survives_its_file(name: str) -> None:
    lines = STORIES[name]().lines
    again = [happened_from_json(json.loads(json.dumps(happened_json(what, at)))) for at, what in lines]
    assert again == list(lines)


@pytest.mark.parametrize(
    "happened",
    [
        Looked(("a",), (Failure("b", "timeout", "no answer", "check it", ("line",)),)),
        StepFailed("a", "pack", 1.5, Failure("a", "failed", "disk full")),
        StepDone("a", "pack", 2.0, {"bytes": 5}),
        Said("warning", "text"),
        RunEnded("serve", 1, 3.0, (Failure("b", "timeout", "no answer"),)),
    ],
)
def test_events_survive_their_file(happened: Any) -> None:
    line = json.loads(json.dumps(happened_json(happened, 5.0)))
    assert happened_from_json(line) == (5.0, happened)


KEYS = ("schema", "unix_s", "event", "node", "sample", "findings", "failure", "x")
VALUES = (
    None,
    "",
    7,
    [1],
    {},
    "sparkyard/event/v1",
    "NodeSampled",
    "FindingsSeen",
    "Looked",
    "CanaryAnswered",
)


@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)))
def test_a_line_that_is_not_ours_is_refused_with_a_reason(line: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        happened_from_json(line)


@given(
    st.lists(st.floats(0.001, 100), min_size=1, max_size=12, unique=True).map(sorted),
    st.data(),
    st.floats(0.01, 0.99),
)
def test_a_quantile_lies_in_the_bucket_that_holds_it(bounds: list[float], data: Any, share: float) -> None:
    counts = data.draw(st.lists(st.integers(0, 50), min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    found = quantile(bounds, counts, share)
    if sum(counts) == 0:
        assert found is None
        return
    assert found is not None
    below = sum(count for bound, count in zip(bounds, counts, strict=False) if bound < found)
    at_most = sum(count for bound, count in zip((0.0, *bounds), counts, strict=True) if bound <= found)
    assert below <= share * sum(counts) + 1e-6
    assert at_most >= min(share * sum(counts), sum(counts[:-1])) - 1e-6


@given(st.floats(0, 1e18), st.floats(0, 1e18), st.floats(-10, 10))
def test_a_rate_is_never_negative(before: float, after: float, seconds: float) -> None:
    found = rate(before, after, seconds)
    assert found is None or found >= 0


@given(st.text(alphabet='ab{}"=le. 1+-\n', max_size=60))
def test_any_metrics_page_can_be_parsed(text: str) -> None:
    parse(text)
    parse("sglang:time_to_first_token_seconds_bucket{" + text)
    parse("sglang:num_running_reqs{" + text + "} " + text)
