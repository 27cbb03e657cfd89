"""The whole life cycle over real SSH, real agents, real guards and a real pack, with a stand-in for the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.model import event as events
from orchestrator.verbs import planned, smoke, status
from tests.standin_engine.lab import StandinLab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinLab]:
    with StandinLab(tmp_path_factory.mktemp("lab")) as running:
        yield running


def titles(lab: StandinLab) -> list[str]:
    return [event.title for event in lab.events if isinstance(event, events.StageStarted)]


def test_up_runs_what_was_planned_and_then_plans_nothing(lab: StandinLab) -> None:
    plan = asyncio.run(planned(lab.session(), "up"))
    answer = lab.do("up")
    assert answer.exit_code == 0, answer.data
    assert titles(lab) == [stage["title"] for stage in plan.data["stages"]]
    assert not [event for event in lab.events if isinstance(event, events.PredictionMissed)]
    again = lab.do("up")
    assert again.exit_code == 0
    assert again.data["stages"] == []


def test_it_serves_and_says_so(lab: StandinLab) -> None:
    answer = asyncio.run(status(lab.session()))
    assert answer.exit_code == 0
    assert answer.data["serving"]
    assert [rank["alive"] for rank in answer.data["ranks"]] == [True, True, True]
    assert asyncio.run(smoke(lab.session())).exit_code == 0


def test_restart_is_the_next_generation(lab: StandinLab) -> None:
    before = asyncio.run(status(lab.session())).data["generation"]
    assert lab.do("restart").exit_code == 0
    assert asyncio.run(status(lab.session())).data["generation"] == before + 1


@pytest.mark.parametrize(("word", "rank"), [("die-joining", 1), ("die-loading", 2), ("no-proof", 1)])
def test_a_rank_that_fails_ends_the_boot_with_its_name(lab: StandinLab, word: str, rank: int) -> None:
    lab.do("stop")
    lab.fault(word, rank)
    answer = lab.do("up")
    lab.fault("", rank)
    assert answer.exit_code == 1
    first = answer.data["failures"][0]
    assert first["node"] == f"spark-{rank + 1}", answer.data["failures"]
    assert f"rank {rank}" in first["message"]
    assert first["evidence"]
    alive = [found.rank for here in lab.facts().values() for found in here.ranks if found.alive]
    assert alive == []


def test_stop_leaves_nothing(lab: StandinLab) -> None:
    assert lab.do("up").exit_code == 0
    assert lab.do("stop").exit_code == 0
    assert lab.do("stop").data["stages"] == []
    assert asyncio.run(status(lab.session())).exit_code == 1
    ranks = [found for here in lab.facts().values() for found in here.ranks]
    assert not any(found.alive for found in ranks)
    left = [words for words in map(cmdline, lab.processes()) if not expected(words)]
    assert left == []


def expected(words: str) -> bool:
    """The nodes' SSH servers, an agent, and what has ended between two looks."""
    return not words or "orchestrator.lab.sshd" in words or ".pyz" in words


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
