"""What dies is named within its bound, leaves evidence that `explain` understands, and comes back once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx

from orchestrator.lab import nodes
from orchestrator.lab.place import NODES
from orchestrator.watch.verdict import State
from tests.guarded import engine, guard, serves
from tests.realgang import BOUNDS, RealLab, headline, kept, restarted_once, watched


def test_a_killed_guard(serving: RealLab, tmp_path: Path) -> None:
    victim = guard(serving, 2)
    restarted_once(
        watched(serving, tmp_path),
        victim.kill,
        verdict="dead rank: spark-3: rank 2 ended: lost",
        within_s=BOUNDS.dead_s,
        cause="guard_lost",
        ranks=[2],
    )


def test_a_whole_process_group(serving: RealLab, tmp_path: Path) -> None:
    """Guard and engine of the head, all at once: nobody is left who could say why."""
    groups = (guard(serving, 0).pid, engine(serving, 0).pid)

    def kill() -> None:
        for group in groups:
            os.killpg(group, signal.SIGKILL)

    restarted_once(
        watched(serving, tmp_path),
        kill,
        verdict="dead rank: spark-1: rank 0 ended: lost",
        within_s=BOUNDS.dead_s,
        cause="guard_lost",
        ranks=[0],
    )


def test_a_killed_ssh_server_restarts_nothing(serving: RealLab, tmp_path: Path) -> None:
    watch = watched(serving, tmp_path)
    server = nodes._running(serving.place.server(NODES[1]))
    assert server is not None
    generation = serving.generation()
    answered: list[int] = []

    def named() -> bool:
        return any("node unreachable: spark-2" in text for text in watch.said())

    def is_kept() -> bool:
        return any(text.startswith("evidence of the nodes that answer") for text in watch.said())

    def is_told_from_a_dead_host() -> bool:
        return any("node unreachable: spark-2" in text and "not the host" in text for text in watch.said())

    async def kill_and_mend() -> None:
        server.kill()
        while not (named() and is_kept() and is_told_from_a_dead_host()):
            await asyncio.sleep(0.2)
        answered.append((await asyncio.to_thread(serving.generate, 30, 8)).status_code)
        await asyncio.to_thread(nodes.up, serving.place)

    def well_again() -> bool:
        return bool(answered) and watch.verdict() in {State.IDLE, State.BUSY}

    watch.run(well_again, then=kill_and_mend)
    named_s = watch.first_said("gang: node unreachable") - watch.happened_s
    print(f"named after {named_s:.1f} s: {[text for text in watch.said() if 'unreachable' in text]}")
    assert named_s <= BOUNDS.silent_s
    assert watch.restarts() == []
    assert answered == [httpx.codes.OK], "the ranks serve on while a node's SSH server is away"
    found = headline(kept(tmp_path))
    assert found["cause"] == "node_silent"
    assert "spark-2" in found["lines"][0]["file"]
    assert serving.generation() == generation
    assert serves(serving)
