"""Logs: times of lines, the order over ranks, what `--since` understands."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.journal import times
from orchestrator.errors import ConfigError
from orchestrator.logs import LINES_MAX, Line, merged, wanted

NOON = 1_795_953_600.0  # 2026-11-29 12:00:00 UTC


def test_a_line_has_its_own_time_or_that_of_the_line_before() -> None:
    lines = ["boot", "[2026-11-29 12:00:00 TP1] one", "Traceback:", "[2026-11-29 12:00:02] two"]
    assert times(lines, 0) == [None, NOON, NOON, NOON + 2]
    assert times(lines, 3600)[1] == NOON - 3600, "an hour ahead of UTC"


@given(st.lists(st.text(max_size=60)))
def test_any_text_has_times_or_none(lines: list[str]) -> None:
    assert len(times(lines, 0)) == len(lines)


def test_ranks_are_merged_by_time_and_each_keeps_its_order() -> None:
    one = [Line(1, None, "start"), Line(1, 5.0, "a"), Line(1, 5.0, "b"), Line(1, 9.0, "c")]
    zero = [Line(0, 5.0, "x"), Line(0, 6.0, "y")]
    assert [line.text for line in merged([*one, *zero])] == ["start", "x", "a", "b", "y", "c"]


@pytest.mark.parametrize(("text", "ago_s"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400)])
def test_spans_count_back_on_the_node_s_own_clock(text: str, ago_s: float) -> None:
    asked = wanted(None, None, follow=False, since=text)
    assert asked.lines == LINES_MAX
    assert asked.since(1_000_000.0) == 1_000_000.0 - ago_s


def test_times_are_local_unless_they_say_else() -> None:
    assert wanted(0, 7, follow=True, since="2026-11-29 12:00:00+00:00").since(0.0) == NOON
    local = datetime(2026, 11, 29, 12).timestamp()  # noqa: DTZ001 - what the person's clock shows
    assert wanted(0, 7, follow=True, since="2026-11-29T12:00").since(0.0) == local
    assert wanted(None, None, follow=False, since=None).since(5.0) is None


@pytest.mark.parametrize("text", ["yesterday", "10", "-5m", "", "2026-13-01", "9999999999d"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="10m"):
        wanted(None, None, follow=False, since=text)
