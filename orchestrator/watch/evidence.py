"""Folders of evidence: what every node knows of a gang, fetched before anything is stopped, kept off the node."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.each import each
from orchestrator.remote.node import Ask, Node, Reply, reply

EVIDENCE_TIMEOUT_S = 30.0
KEPT_FOLDERS = 30
"""Each is at most a few MiB; the oldest go first."""
SCHEMA = "sparkyard/evidence/v1"


async def save(nodes: Mapping[str, Node], deployment: str, below: Path, why: str) -> Path:
    """Write one folder `<below>/<time>`; silent nodes are named in it. OSError when it cannot be written."""
    replies = await each(
        nodes,
        lambda name: reply(
            nodes[name], Ask("evidence", {"deployment": deployment}), timeout_s=EVIDENCE_TIMEOUT_S
        ),
    )
    return await asyncio.to_thread(_write, replies, deployment, below, why)


def _write(replies: Mapping[str, Reply], deployment: str, below: Path, why: str) -> Path:
    below.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = below / f".{name}.{os.getpid()}.tmp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    silent = {}
    for node, answer in replies.items():
        if answer.failure is not None:
            silent[node] = answer.failure.message
            _write_silent(folder, node, answer.failure.message)
            continue
        try:
            _write_node(folder, node, answer.value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            silent[node] = f"its evidence is not usable: {type(error).__name__}: {error}"
    about = {
        "schema": SCHEMA,
        "deployment": deployment,
        "why": why,
        "unix_s": time.time(),
        "silent": silent,
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    for path in folder.rglob("*"):  # evidence is for after a crash, of this machine too
        _sync(path)
    _sync(folder)
    final = _free(below, name)
    folder.rename(final)
    _sync(below)
    _prune(below)
    return final


def _write_silent(folder: Path, node: str, why: str) -> None:
    own = folder / f"node-{node}"
    own.mkdir()
    (own / "silent.txt").write_text(f"{node} did not answer: {why}\n", encoding="utf-8")


def _sync(path: Path) -> None:
    """Of a file its content, of a folder its names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_node(folder: Path, node: str, value: dict[str, Any]) -> None:
    """`rank-1/engine.log`, `rank-1/status.json`, …, and what the node itself says in `node-spark-2/`."""
    own = folder / f"node-{node}"
    own.mkdir()
    (own / "kernel.log").write_text("\n".join(_lines(value.get("kernel"))), encoding="utf-8")
    numbers = {"memory": value.get("memory"), "pressure": value.get("pressure")}
    (own / "memory.json").write_text(json.dumps(numbers), encoding="utf-8")
    ranks = value.get("ranks")
    for rank in ranks if isinstance(ranks, list) else ():
        place = folder / f"rank-{int(rank['rank'])}"
        place.mkdir(exist_ok=True)
        (place / "node").write_text(node, encoding="utf-8")
        for name, lines in rank.get("logs", {}).items():
            if name in LOGS and lines:
                (place / name).write_text("\n".join(_lines(lines)) + "\n", encoding="utf-8")
        for name, document in rank.get("documents", {}).items():
            if name in DOCUMENTS and document is not None:
                (place / name).write_text(json.dumps(document, indent=1), encoding="utf-8")


LOGS = frozenset({"engine.log", "guard.log", "guard.out"})
DOCUMENTS = frozenset({"status.json", "rank.json", "proof.json", "engram.json", "pulse.json"})
"""Names that are written; an agent cannot choose others."""


def _lines(value: Any) -> list[str]:
    return [str(line) for line in value] if isinstance(value, list) else []


def _free(below: Path, name: str) -> Path:
    for number in range(1, 1000):
        path = below / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
    raise FileExistsError(f"{below / name}: a thousand folders of one second")


def _prune(below: Path) -> None:
    folders = sorted(path for path in below.iterdir() if path.is_dir() and not path.name.startswith("."))
    for old in folders[:-KEPT_FOLDERS]:
        shutil.rmtree(old, ignore_errors=True)
