"""The dashboard: every screen and state as a picture, what its keys do, and a replay."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from orchestrator.errors import ConfigError
from orchestrator.model.sample import happened_json
from orchestrator.view.state import State, fold_all, unknown
from orchestrator.view.tui.app import CHOICES, Top
from orchestrator.view.tui.screens import Question, TextScreen
from orchestrator.view.tui.source import Controls, Verb
from orchestrator.view.tui.table import Column, clipped, draw, fitting
from orchestrator.view.tui.words import bar, count, seconds, span, spark
from orchestrator.watch.replay import Replay, read
from tests import watched
from tests.watched import STORIES, Story


class Svg(SingleFileSnapshotExtension):
    _file_extension = "svg"
    file_extension = "svg"
    _write_mode = WriteMode.TEXT


@pytest.fixture
def picture(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(Svg)


class Still:
    """A source in which time stands."""

    def __init__(self, story: Story) -> None:
        self.show(story)

    def show(self, story: Story) -> None:
        self._state, self._now = story.state(), story.now_unix_s

    def look(self) -> tuple[State, float]:
        return self._state, self._now

    def about(self) -> str:
        return "live"


def controls(done: list[str]) -> Controls:
    async def logs(node: str) -> list[str]:
        return [
            f"{node}: [2026-11-29] The server is fired up and ready to roll!",
            "bell \x07 and \x1b[2J are harmless",
        ]

    async def doctor() -> list[str]:
        return ["error   spark-2 enp1s0f1np1: 13.1 Gb/s [cx7.bw]"]

    async def plan(verb: Verb) -> list[str]:
        return [f"1. {verb} the ranks", "   spark-1: stop rank 0 (desired is stopped)"]

    async def perform(verb: Verb) -> list[str]:
        done.append(verb)
        return [f"{verb} ends with 0"]

    return Controls(logs, doctor, plan, perform)


async def _shown(
    story: Story, size: tuple[int, int], keys: Sequence[str] = (), done: list[str] | None = None
) -> tuple[str, Any]:
    app = Top(Still(story), controls([] if done is None else done), refresh_s=None)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await app.workers.wait_for_complete()
            await pilot.pause()
        await pilot.pause()
        return app.export_screenshot(title="sparkyard top"), app.screen


def shown(story: Story, size: tuple[int, int], *keys: str, done: list[str] | None = None) -> str:
    return asyncio.run(_shown(story, size, keys, done))[0]


SMALL = (80, 24)
LARGE = tuple((name, size) for size in ((120, 40), (200, 60)) for name in sorted(STORIES))
SCREENS: dict[str, tuple[str, ...]] = {
    "links": ("2",),
    "engram": ("4",),
    "detail": ("j", "enter"),
    "findings": ("f",),
    "events": ("e", "s", "p", "a", "r", "k", "minus", "2"),
    "help": ("question_mark",),
    "logs": ("l",),
    "question": ("S",),
}


async def _states(views: Sequence[tuple[str, tuple[int, int]]]) -> dict[str, str]:
    """Pictures of several states from one run of the dashboard."""
    source, found = Still(STORIES[views[0][0]]()), {}
    app = Top(source, controls([]), refresh_s=None)
    async with app.run_test(size=views[0][1]) as pilot:
        for name, size in views:
            source.show(STORIES[name]())
            await pilot.resize_terminal(*size)
            app.refresh_all()
            await pilot.pause()
            found[f"{name}-{size[0]}x{size[1]}"] = app.export_screenshot(title="sparkyard top")
    return found


async def _screens() -> dict[str, str]:
    found = {}
    app = Top(Still(watched.degraded()), controls([]), refresh_s=None)
    async with app.run_test(size=SMALL) as pilot:
        for name, keys in SCREENS.items():
            for key in keys:
                await pilot.press(key)
            await app.workers.wait_for_complete()
            await pilot.pause()
            found[name] = app.export_screenshot(title="sparkyard top")
            await pilot.press("escape")
    return found


def test_every_state_on_a_small_terminal(picture: SnapshotAssertion) -> None:
    for name, found in asyncio.run(_states([(name, SMALL) for name in sorted(STORIES)])).items():
        assert found == picture(name=name)


def test_every_state_with_all_panels(picture: SnapshotAssertion) -> None:
    for name, found in asyncio.run(_states(LARGE)).items():
        assert found == picture(name=name)


def test_every_screen(picture: SnapshotAssertion) -> None:
    for name, found in asyncio.run(_screens()).items():
        assert found == picture(name=name)


def test_without_colours_the_words_remain(picture: SnapshotAssertion) -> None:
    before = os.environ.get("NO_COLOR")
    os.environ["NO_COLOR"] = "1"
    try:
        found = shown(watched.down(), (80, 24))
    finally:
        if before is None:
            del os.environ["NO_COLOR"]
    assert found == picture
    for word in ("✖", "down", "silent", "ended", "FAILS"):
        assert word in found


def test_eight_nodes_and_forty_columns_still_draw() -> None:
    for size in ((40, 12), (80, 24), (300, 80)):
        assert "serving" in shown(watched.serving(nodes=8, ticks=3), size)


@pytest.mark.parametrize(
    ("keys", "verbs"), [(("S", "y"), ["stop"]), (("R", "n"), []), (("R", "escape"), []), (("S", "enter"), [])]
)
def test_an_order_needs_a_yes(keys: tuple[str, ...], verbs: list[str]) -> None:
    done: list[str] = []
    shown(watched.serving(ticks=3), (80, 24), *keys, done=done)
    assert done == verbs


def test_a_yes_before_the_plan_is_shown_does_nothing() -> None:
    async def play() -> list[str]:
        done: list[str] = []
        gate = asyncio.Event()
        orders = controls(done)

        async def slow(verb: Verb) -> list[str]:
            await gate.wait()
            return await orders.plan(verb)

        app = Top(
            Still(watched.serving(ticks=3)),
            Controls(orders.logs, orders.doctor, slow, orders.perform),
            refresh_s=None,
        )
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("S", "y")
            assert isinstance(app.screen, Question)
            assert done == []
            gate.set()
            await app.workers.wait_for_complete()
            await pilot.press("y")
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert isinstance(app.screen, TextScreen)
        return done

    assert asyncio.run(play()) == ["stop"]


def test_a_replay_can_only_be_looked_at() -> None:
    async def play() -> None:
        app = Top(Still(watched.serving(ticks=3)), None, refresh_s=None)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("S", "l", "d")
            assert not isinstance(app.screen, Question | TextScreen)

    asyncio.run(play())


def test_every_panel_is_reached_by_tab() -> None:
    async def play() -> list[str]:
        app = Top(Still(watched.serving(ticks=3)), None, refresh_s=None)
        seen = []
        async with app.run_test(size=(80, 24)) as pilot:
            for _ in CHOICES:
                seen += [name for name in CHOICES if app.query_one(f"#{name}").display]
                await pilot.press("tab")
        return seen

    assert asyncio.run(play()) == list(CHOICES)


# Replay


def written(tmp_path: Path, story: Story) -> Path:
    path = tmp_path / "events.jsonl"
    rows = [json.dumps(happened_json(happened, at)) for at, happened in story.lines]
    path.write_text("\n".join([*rows[:5], '{"cut', *rows[5:]]) + "\n", encoding="utf-8")
    return path


def test_a_replay_comes_to_the_same_state_as_the_run(tmp_path: Path) -> None:
    story = watched.degraded()
    lines, skipped = read(written(tmp_path, story))
    assert skipped == 1
    now = [0.0]
    replay = Replay(lines, speed=1.0, clock=lambda: now[0])
    replay.look()
    now[0] = 1e6
    for _ in range(10):  # a long silence is skipped, so that the whole file takes a few looks
        now[0] += 1e6
        state, at = replay.look()
    assert at == lines[-1][0]
    assert state == fold_all(unknown(), lines)
    assert replay.about().endswith("end")


def test_a_replay_goes_back_and_stops_and_speeds_up(tmp_path: Path) -> None:
    lines, _ = read(written(tmp_path, watched.serving()))
    now = [0.0]
    replay = Replay(lines, clock=lambda: now[0])
    replay.seek(500)
    replay.seek(500)
    _, late = replay.look()
    replay.seek(-20)
    state, early = replay.look()
    assert early == pytest.approx(late - 20)
    assert state == fold_all(unknown(), [line for line in lines if line[0] <= early])
    replay.pause()
    now[0] = 50.0
    assert replay.look()[1] == early
    replay.pause()
    replay.faster(4.0)
    now[0] = 51.0
    assert replay.look()[1] == pytest.approx(early + 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "it is empty"), ("{}\n", "not a sparkyard/event/v1 line"), ("\x00\n", "Expecting value")],
)
def test_a_file_without_events_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read(path)


# Small pieces


@given(st.lists(st.floats(0, 1e12), max_size=40), st.integers(0, 30))
def test_a_sparkline_has_its_width(history: list[float], width: int) -> None:
    assert len(spark(history, width)) == width


@given(st.floats(-1, 2), st.integers(0, 30))
def test_a_bar_has_its_width(share: float, width: int) -> None:
    assert len(bar(share, width)) == width


@given(st.text(alphabet="aé宽\x1b\x07\n\t", max_size=20), st.integers(1, 12))
def test_clipped_text_fits_and_cannot_command_a_terminal(text: str, width: int) -> None:
    found = clipped(text, width)
    assert Text(found).cell_len <= width
    assert not set(found) & set("\x1b\x07\n\t")


@given(st.integers(1, 120), st.integers(0, 3))
def test_a_table_fits_or_shows_what_must_be_shown(width: int, selected: int) -> None:
    columns = [Column("A", 6), Column("B", 8, 1), Column("C", 10, 2), Column("D", 4, 1)]
    text = draw(columns, [["aaaaaaaaaa", "b", "c", "d"]] * 3, width, selected)
    assert max(row.cell_len for row in text.split("\n")[1:]) <= width
    assert 0 in fitting(columns, width)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0s"), (59, "59s"), (290, "4m50s"), (11_220, "3h07m"), (190_000, "2d04h")],
)
def test_long_times(value: float | None, text: str) -> None:
    assert span(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.00004, "40 µs"), (0.0123, "12.3 ms"), (1.5, "1.50 s"), (40, "40 s")]
)
def test_short_times(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3, "3"), (0.5, "0.5"), (5760, "5.8k"), (1_030_000, "1.0M"), (2.5e10, "25.0G")]
)
def test_counts(value: float, text: str) -> None:
    assert count(value) == text
