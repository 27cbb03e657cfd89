"""The whole life cycle over real SSH, real agents, real guards and a real pack, with a stand-in for the engine."""

from __future__ import annotations

import asyncio
import getpass
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import logs
from orchestrator.lab.place import NODES
from orchestrator.model import event as events
from orchestrator.model.boot import BootRecord
from orchestrator.model.facts import PHASES
from orchestrator.model.profile import Profile
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


def test_status_names_what_each_rank_runs(lab: StandinLab) -> None:
    data = asyncio.run(status(lab.session())).data
    for rank in data["ranks"]:
        assert (rank["desired"], rank["generation"]) == ("serving", data["generation"])
        assert len(rank["engine"]) == len(rank["store"]) == 64
        assert rank["memory_low_water_bytes"] > 0


def test_the_boot_is_recorded_on_every_node(lab: StandinLab) -> None:
    generation = asyncio.run(status(lab.session())).data["generation"]
    for rank, (node, here) in enumerate(sorted(lab.facts().items())):
        boot = here.boot(lab.profile.name, generation)
        assert boot is not None
        assert (boot.proven, boot.profile) == (True, lab.profile.identity)
        in_time = sorted(boot.timeline, key=lambda phase: (boot.timeline[phase], PHASES.index(phase)))
        assert in_time == sorted(boot.timeline, key=PHASES.index)
        assert {"starting", "joined", "loading", "ready"} <= set(boot.timeline), node
        path = lab.place.node(node) / "boots" / f"{lab.profile.name}.g{generation}.json"
        record = BootRecord.model_validate(json.loads(path.read_text()))
        assert record.rank == rank
        seen = record.measured
        assert min(seen.memory_before_bytes, seen.memory_low_water_bytes, seen.memory_available_bytes) > 0
        assert seen.engine_bytes_read["calls"] > 0
        assert seen.node_bytes_read is not None
        assert record.versions["engine_package"] == record.goal.package
        assert Profile.model_validate(record.goal.profile) == lab.profile


def shown(lab: StandinLab, *words: str) -> list[str]:
    lines: list[str] = []
    asked = logs.wanted(**{"rank": None, "lines": None, "follow": False, "since": None, **dict([words])})
    assert asyncio.run(logs.logs(lab.session(), asked, lines.append)).exit_code == 0
    return lines


def test_logs_of_all_ranks_by_time_and_since(lab: StandinLab) -> None:
    lines = shown(lab, "lines", 100)
    assert {line.split(" │ ")[0] for line in lines} == {"rank 0", "rank 1", "rank 2"}
    stamps = [line.split(" │ ")[1][1:20] for line in lines if " │ [2" in line]
    assert stamps == sorted(stamps)
    assert shown(lab, "since", "1h") == lines, "no line is older than an hour"
    assert shown(lab, "since", "2999-01-01") == []
    last = stamps[-1]
    assert [line for line in shown(lab, "since", last) if " │ [2" in line] == [
        line for line in lines if last in line
    ]
    assert {line.split(" │ ")[0] for line in shown(lab, "rank", 2)} == {"rank 2"}


def test_followed_logs_bring_new_lines_of_every_rank(lab: StandinLab) -> None:
    generation = asyncio.run(status(lab.session())).data["generation"]
    lines: list[str] = []

    async def go() -> int:
        session = lab.session()
        asked = logs.wanted(None, 5, follow=True, since=None)
        following = asyncio.create_task(logs.logs(session, asked, lines.append))
        await until(lambda: {line[:6] for line in lines} == {"rank 0", "rank 1", "rank 2"})
        for rank, name in enumerate(NODES):
            path = lab.place.node(name) / "ranks" / f"{lab.profile.name}.g{generation}.r{rank}" / "engine.log"
            with path.open("a") as file:
                file.write(f"a new line of rank {rank}\n")
        wanted = {f"rank {rank} │ a new line of rank {rank}" for rank in range(3)}
        await until(lambda: wanted <= set(lines))
        session.interrupted = True
        return (await following).exit_code

    assert asyncio.run(go()) == 0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.1)


def test_restart_is_the_next_generation_and_says_how_long_it_will_take(lab: StandinLab) -> None:
    before = asyncio.run(status(lab.session())).data["generation"]
    assert lab.do("restart").exit_code == 0
    assert asyncio.run(status(lab.session())).data["generation"] == before + 1
    told = [event for event in lab.events if isinstance(event, events.Progress) and event.unit == "s"]
    assert told
    assert all(event.total > 0 for event in told)
    assert any("boot of generation" in event.text for event in lab.events if isinstance(event, events.Said))


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


def test_stop_names_who_holds_the_memory_that_is_missed(lab: StandinLab) -> None:
    """The record says that more was available before the boot than the machine has; a program holds some."""
    assert lab.do("up").exit_code == 0
    generation = asyncio.run(status(lab.session())).data["generation"]
    record = lab.place.node("spark-2") / "boots" / f"{lab.profile.name}.g{generation}.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps(known | {"memory_before_bytes": 1 << 42}))
    words = [
        sys.executable,
        "-c",
        "import sys; held = b'1' * (300 << 20); print(1, flush=True); sys.stdin.read()",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hog:
        assert hog.stdout.readline() == b"1\n"
        answer = lab.do("stop")
        hog.stdin.close()
    record.write_text(json.dumps(known))
    (failure,) = answer.data["failures"]
    assert (answer.exit_code, failure["node"], failure["kind"]) == (1, "spark-2", "timeout")
    (line,) = [line for line in failure["evidence"] if f"pid {hog.pid}," in line]
    assert f"user {getpass.getuser()}" in line
    assert "held = b'1'" not in line, "not more of a command line than its first words"
    assert int(line.split(": ")[-1].split(" ")[0].replace(",", "")) >= 300 << 20
    assert "there since the boot" in line
    assert lab.do("stop").exit_code == 0


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
