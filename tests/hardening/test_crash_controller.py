"""The controller dies at every write to its log and at every message; the same verb, run again, finishes.

build and share with two real agents over pipes; build, share and pack with one and its job; `events.jsonl`. The second
run ends when nothing is left to plan, and what an undisturbed run left is what must be there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from orchestrator.model.cluster import Cluster
from orchestrator.model.goal import Goal
from orchestrator.model.profile import Profile
from orchestrator.plan import build, pack, share
from orchestrator.run import Decide, converge, dry_run, observe
from orchestrator.verbs import Session
from orchestrator.view.log import EventLog
from tests.engram_checkpoint import write_checkpoint
from tests.hardening import dying
from tests.hardening.figures import Figures
from tests.standin_engine.lab import engine_python, layout_of_lab, quick_profile

PARTS = 4
VOCAB = 40
POLL_S = 0.1


def profile(ranks: int) -> Profile:
    """The lab's, for so many ranks and without slices: half the jobs to wait for."""
    data = quick_profile().model_dump(mode="json", by_alias=True)
    data["parallel"] = {"tp": ranks}
    data["settings"] = [entry for entry in data["settings"] if entry.get("plugin") != "slices"]
    return Profile.model_validate(data)


def cluster(folder: Path, checkpoint: Path, ranks: int) -> Cluster:
    nodes = [
        {
            "name": f"spark-{number}",
            "transport": "local",
            "python": sys.executable,
            "root": str(folder / f"spark-{number}"),
            "port_offset": 40 * number,
            "engine_python": str(engine_python(folder)),
        }
        for number in range(1, ranks + 1)
    ]
    data = {
        "schema": "sparkyard/cluster/v1",
        "topology": "single-host",
        "head": "spark-1",
        "checkpoint": {"node": "spark-1", "path": str(checkpoint)},
        "nodes": nodes,
    }
    return Cluster.model_validate(data)


def wanted(goal: Goal) -> Decide:
    """What `up` does before it serves; with two nodes until the checkpoint is shared."""
    if len(goal.cluster.nodes) > 1:
        return lambda facts: build.decide(goal, facts) or share.decide(goal, facts)
    return lambda facts: build.decide(goal, facts) or share.decide(goal, facts) or pack.decide(goal, facts)


async def packed(session: Session) -> int:
    """1 when a node failed."""
    goal, payloads = session.goal()
    async with session.world(payloads) as world:
        world.poll_s = POLL_S
        return int(bool((await converge(world, wanted(goal))).failures))


def in_child(folder: Path, checkpoint: Path, ranks: int, number: int | None) -> int:
    """Exit code of the verbs in a forked controller that dies before operation ``number``; None: it lives."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            with EventLog(folder / ".sparkyard" / "events.jsonl") as log:
                session = Session(
                    profile(ranks), cluster(folder, checkpoint, ranks), log.emit, strict_conformance=True
                )
                if number is not None:
                    dying.die_at(number, folder / "log")
                code = asyncio.run(packed(session))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def left_to_do(folder: Path, checkpoint: Path, ranks: int) -> list[str]:
    session = Session(profile(ranks), cluster(folder, checkpoint, ranks), lambda _: None)

    async def go() -> list[str]:
        goal, _ = session.goal()
        async with session.world() as world:
            stages, blocked = dry_run(wanted(goal), await observe(world))
        assert not blocked
        return [stage.title for stage in stages]

    return asyncio.run(go())


def stores(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for node in ("spark-1", "spark-2")
        for path in (folder / node / "packs").rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.fixture(scope="module", params=[1, 2], ids=["one node", "two nodes"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path, Path, list[str]]:
    folder, ranks = tmp_path_factory.mktemp("undisturbed"), int(request.param)
    checkpoint = folder / "checkpoint"
    write_checkpoint(checkpoint, layout_of_lab(VOCAB), VOCAB)
    assert in_child(folder, checkpoint, ranks, 0) == 0
    assert left_to_do(folder, checkpoint, ranks) == []
    return ranks, folder, checkpoint, dying.operations(folder / "log")


@pytest.mark.parametrize("part", range(PARTS))
def test_it_dies_at_every_operation_and_the_same_verb_finishes(
    undisturbed: tuple[int, Path, Path, list[str]], tmp_path: Path, figures: Figures, part: int
) -> None:
    ranks, reference, checkpoint, operations = undisturbed
    whole = stores(reference)
    assert bool(whole) == (ranks == 1)
    for number in range(1 + part, len(operations) + 1, PARTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        code = in_child(folder, checkpoint, ranks, number)
        assert code in {0, dying.EXIT_CODE}
        assert in_child(folder, checkpoint, ranks, None) == 0, f"operation {number}: {operations[number - 1]}"
        assert stores(folder) == whole
        lines = (folder / ".sparkyard" / "events.jsonl").read_text().splitlines()
        assert all(json.loads(line)["schema"] == "sparkyard/event/v1" for line in lines)
        figures.add(
            "crash points: the controller ended before an operation or a message", code == dying.EXIT_CODE
        )
