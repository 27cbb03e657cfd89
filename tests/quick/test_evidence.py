"""A folder of evidence from what nodes answer, and from nodes that do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from orchestrator.explain.verb import from_folder
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Message, Reply
from orchestrator.watch import evidence


class Answering:
    """A node that answers every request with one value, or with a failure."""

    def __init__(self, name: str, value: dict[str, Any] | None, failure: str = "") -> None:
        self.name, self.value, self.failure = name, value, failure

    async def ask(self, request: Ask, *, timeout_s: float) -> AsyncIterator[Message]:
        assert (request.what, timeout_s) == ("evidence", evidence.EVIDENCE_TIMEOUT_S)
        yield (
            Reply(self.value)
            if self.value is not None
            else Reply({}, Failure(self.name, "unreachable", self.failure))
        )

    async def close(self) -> None:
        """Nothing is open."""


def answer(rank: int, **pulse: Any) -> dict[str, Any]:
    signs = {"guarded": True, "processes": 5, "stopped": 0, "ended": "", **pulse}
    documents = {"rank.json": {"memory_floor_bytes": 17}, "pulse.json": signs, "../../out": {"a": 1}}
    return {
        "ranks": [{"rank": rank, "logs": {"engine.log": ["ready"]}, "documents": documents}],
        "kernel": [],
    }


def saved(folder: Path, *nodes: Answering) -> tuple[Path, list[str]]:
    """The folder, and the causes that `explain` finds in it."""
    path = asyncio.run(evidence.save({node.name: node for node in nodes}, "lab", folder, "a test"))
    return path, [cause["cause"] for cause in from_folder(path).data["causes"]]


def test_ranks_that_are_well_have_no_cause_and_only_known_names_are_written(tmp_path: Path) -> None:
    path, causes = saved(tmp_path, Answering("spark-1", answer(0)), Answering("spark-2", answer(1)))
    assert causes == []
    assert sorted(entry.name for entry in (path / "rank-0").iterdir()) == [
        "engine.log",
        "node",
        "pulse.json",
        "rank.json",
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_a_stopped_process_and_a_lost_guard_are_named_with_their_rank(tmp_path: Path) -> None:
    stopped = Answering("spark-2", answer(1, stopped=1))
    lost = Answering("spark-3", answer(2, guarded=False, ended="lost: the guard is gone without a word"))
    path, causes = saved(tmp_path, Answering("spark-1", answer(0)), stopped, lost)
    assert causes == ["stopped", "guard_lost"]
    ranks = [cause["ranks"] for cause in from_folder(path).data["causes"]]
    assert ranks == [[1], [2]]


def test_a_silent_node_is_named_with_its_own_words(tmp_path: Path) -> None:
    silent = Answering("spark-2", None, "Connection refused")
    path, causes = saved(tmp_path, Answering("spark-1", answer(0)), silent)
    assert causes == ["node_silent"]
    assert json.loads((path / "about.json").read_text())["silent"] == {"spark-2": "Connection refused"}
    assert (
        path / "node-spark-2" / "silent.txt"
    ).read_text() == "spark-2 did not answer: Connection refused\n"
