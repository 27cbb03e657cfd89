"""The agent dies at every operation on its files and at every message; after each, the same requests finish.

One sequence of all actions that write: it is run once to count, then once for each operation with an agent that ends
right before it, and then again with a whole one on what was left. The last look and every file must be as if nothing
had happened.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.server
import json
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.facts import NodeFacts
from orchestrator.remote import local
from orchestrator.remote.channel import AgentNode
from orchestrator.remote.node import Ask, Reply, reply
from sparkyard_engine.engram.manifest import load
from tests.engram_checkpoint import write_checkpoint
from tests.engram_stores import LAYOUT, VOCAB
from tests.hardening import dying
from tests.hardening.figures import Figures
from tests.quick.test_refusals import zipped

ROOT = Path(__file__).resolve().parents[2]
PARTS = 8
"""The points are dealt to this many tests, so that two processes share them."""
ENGINE = zipped(("sparkyard_engine/__init__.py", 0, b"x = 1\n"), ("native/page.hpp", 0, b"//\n"))
FETCHED = b"a blob that another node offers" * 100
STORE = "5" * 64
JOB_TIMEOUT_S = 30.0
VOLATILE = {"now_unix_s", "memory", "disks", "listeners", "boots", "ranks", "jobs", "lease", "ports", "host"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Offered(http.server.BaseHTTPRequestHandler):
    """The other node."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(FETCHED)))
        self.end_headers()
        self.wfile.write(FETCHED)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[tuple[str, dict[str, Any]]]]]:
    """A checkpoint, and the requests with all that they need."""
    base = tmp_path_factory.mktemp("agent")
    write_checkpoint(base / "checkpoint", LAYOUT, VOCAB)
    index = sha256((base / "checkpoint" / "model.safetensors.index.json").read_bytes())
    packer = base / "packer"
    packer.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "engine"} exec {sys.executable} "$@"\n')
    guard = base / "guard"
    guard.write_text("#!/bin/sh\nexec sleep 60\n")
    for path in (packer, guard):
        path.chmod(0o755)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Offered)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    desired = {"deployment": "d", "generation": 1, "state": "serving", "profile": "p"}
    rank = {"deployment": "d", "generation": 1, "rank": 0}
    engine = sha256(ENGINE)
    pack = {"store": STORE, "revision": "r", "tp": 3, "rank": 1, "ownership": "balanced", "spec": "5" * 64}
    requests = [
        ("SetDesired", desired),
        ("PutBlob", {"digest": engine, "data": base64.b64encode(ENGINE).decode()}),
        (
            "FetchBlob",
            {
                "digest": sha256(FETCHED),
                "size_bytes": len(FETCHED),
                "url": f"http://127.0.0.1:{server.server_address[1]}/",
                "token": "t",
            },
        ),
        ("InstallEngine", {"digest": engine}),
        ("AttachCheckpoint", {"mode": "own", "path": str(base / "checkpoint"), "source": "spark-1"}),
        ("ProveCheckpoint", {"index_sha256": index, "seed": 1, "blocks": 4}),
        ("StartPack", {**pack, "python": str(packer), "engine": engine}),
        (
            "StartRank",
            {**rank, "engine": engine, "python": str(guard), "spec": "5" * 64, "body": {**rank, "argv": []}},
        ),
        ("StopRank", {**rank, "grace_s": 5}),
        ("rest", {"deployment": "d", "state": "stopped"}),
    ]
    yield base, requests
    server.shutdown()


def node(folder: Path, number: int | None) -> AgentNode:
    """The agent on this root; with a number it dies before that operation."""
    python = sys.executable
    if number is not None:
        path = folder / "python"
        path.write_text(
            f'#!/bin/sh\nexec {sys.executable} -I {dying.__file__} {number} {folder / "log"} "$@"\n'
        )
        path.chmod(0o755)
        python = str(path)
    return AgentNode(
        "spark-1", {"root": str(folder / "root"), "python": python, "recorded": None}, local.dial
    )


def ask_all(agent: AgentNode, requests: list[tuple[str, dict[str, Any]]]) -> list[Reply]:
    """The replies until the first that fails; the pack job is waited for."""

    async def go() -> list[Reply]:
        answers: list[Reply] = []
        try:
            ask = partial(reply, agent, timeout_s=60.0)
            lease = await ask(Ask("lease", {"holder": "test"}))
            if lease.failure is not None:
                return [lease]
            for what, args in requests:
                answers.append(await ask(Ask(what, args, lease.value.get("fence"))))
                if answers[-1].failure is not None:
                    return answers
            end = time.monotonic() + JOB_TIMEOUT_S
            while True:
                answers.append(await ask(Ask("facts")))
                jobs = answers[-1].value.get("jobs", [])
                if answers[-1].failure or not any(job["state"] == "running" for job in jobs):
                    return answers
                assert time.monotonic() < end, jobs
                await asyncio.sleep(0.05)
        finally:
            await agent.close()

    return asyncio.run(go())


def lasting(facts: dict[str, Any]) -> dict[str, Any]:
    """What must be the same however often the agent died."""
    NodeFacts.model_validate(facts)
    kept = {key: value for key, value in facts.items() if key not in VOLATILE}
    kept["proof"] = {key: value for key, value in facts["proof"].items() if key != "bytes_per_s"}
    jobs = [(job["id"], job["state"], job["spec"]) for job in facts["jobs"]]
    ranks = [(rank["rank"], rank["generation"], rank["alive"]) for rank in facts["ranks"]]
    return json.loads(
        json.dumps({**kept, "jobs": jobs, "ranks": ranks}).replace(facts["stores"][0]["path"], "STORE")
    )


def whole(root: Path) -> None:
    """Every file that carries a promise is whole."""
    for path in (root / "blobs").iterdir():
        if len(path.name) == 64:
            assert sha256(path.read_bytes()) == path.name
    for path in root.rglob("*.json"):
        if not path.name.startswith("."):
            json.loads(path.read_bytes())
    assert [folder.name for folder in (root / "engine").iterdir() if not folder.name.startswith(".")] == [
        sha256(ENGINE)
    ]
    load(root / "packs" / STORE)


def looks_the_same(found: dict[str, Any], expected: dict[str, Any], folder: Path, reference: Path) -> None:
    text = (
        json.dumps(found).replace(str(folder), "FOLDER"),
        json.dumps(expected).replace(str(reference), "FOLDER"),
    )
    assert json.loads(text[0]) == json.loads(text[1])


@pytest.fixture(scope="module")
def reference(yard, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """An undisturbed run: its last facts, and its operations."""
    folder = tmp_path_factory.mktemp("undisturbed")
    answers = ask_all(node(folder, 0), yard[1])
    assert [answer.failure for answer in answers if answer.failure] == []
    whole(folder / "root")
    return folder, lasting(answers[-1].value), dying.operations(folder / "log")


@pytest.mark.parametrize("part", range(PARTS))
def test_it_dies_at_every_operation_and_the_same_requests_finish(
    yard, reference, tmp_path: Path, figures: Figures, part: int
) -> None:
    undisturbed, expected, operations = reference
    assert {"rename", "fsync", "flush", "mkdir", "symlink"} <= set(operations)
    for number in range(1 + part, len(operations) + 1, PARTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        died = ask_all(node(folder, number), yard[1])
        after = len(dying.operations(folder / "log"))
        if died[-1].failure is None:  # fewer operations this time: a look less while the job ran
            assert after < number
            continue
        assert died[-1].failure.kind in {"unreachable", "failed"}, died[-1].failure
        again = ask_all(node(folder, None), yard[1])
        where = f"operation {number}: {operations[number - 1]}"
        assert [answer.failure for answer in again if answer.failure] == [], where
        whole(folder / "root")
        looks_the_same(lasting(again[-1].value), expected, folder, undisturbed)
        figures.add("crash points: the agent ended before an operation or a message")
