"""Verbs against the monitor, a few seeds; all of them are in tests/gang."""

from __future__ import annotations

from tests.race import hold, race


def test_stop_stays_stopped_and_there_is_one_gang() -> None:
    hold(range(24))


def test_the_same_seed_runs_the_same() -> None:
    first, second = race(7), race(7)
    assert first.verbs == second.verbs
    assert [str(event) for event in first.said] == [str(event) for event in second.said]
