"""`lab`: the whole life cycle on one machine. Sets everything up, runs the verbs, and proves the answers.

Proof: the greedy tokens and log-probabilities of the three padded, disk-backed ranks are compared with those of one
unpadded rank that holds the tables in memory.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from orchestrator import verbs
from orchestrator.errors import Exit, SparkyardError
from orchestrator.examination import diagnose
from orchestrator.lab import asking, environment, local, nodes, prompts
from orchestrator.lab.equality import Answer, Equality, compare
from orchestrator.lab.nodes import LabError
from orchestrator.lab.place import NODES, Place
from orchestrator.load import load_cluster
from orchestrator.model.event import Event, Progress, Said, StageStarted, StepDone
from orchestrator.model.finding import Severity
from orchestrator.model.profile import FlagSetting, Profile
from orchestrator.verbs import Session

CHECKPOINT_SEED = 7
PROMPT_SEED = 11
CHECKPOINT_TIMEOUT_S = 300.0
API_TIMEOUT_S = 30.0
ENGINE_SOURCES = Path(__file__).resolve().parents[2] / "engine"

Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What the lab runs on."""

    python: Path
    seconds: float


async def set_up(place: Place, profile: Profile, emit: Emit, torch_from: str | None) -> Setup:
    """Engine environment, checkpoint, nodes. What is there already is kept."""
    begin = time.monotonic()
    emit(StageStarted("set the lab up", (), ()))

    def progress(done: int, total: int, note: str) -> None:
        emit(Progress("this machine", "engine environment", done, total, "steps", note))

    made = await asyncio.to_thread(environment.ensure, progress, torch_from=torch_from)
    emit(StepDone("this machine", f"engine environment ({made.size_bytes / 1e9:.1f} GB)", made.made_s, {}))
    started = time.monotonic()
    await _make_checkpoint(place, made.python)
    emit(StepDone(NODES[0], "checkpoint from a seed", time.monotonic() - started, {}))
    started = time.monotonic()
    await asyncio.to_thread(nodes.prepare, place, profile, made.python)
    await asyncio.to_thread(nodes.up, place)
    emit(StepDone("this machine", f"SSH servers of {', '.join(NODES)}", time.monotonic() - started, {}))
    return Setup(made.python, time.monotonic() - begin)


async def _make_checkpoint(place: Place, python: Path) -> None:
    place.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    argv = [
        str(python),
        "-m",
        "sparkyard_engine.lab.checkpoint",
        str(place.checkpoint),
        "--seed",
        str(CHECKPOINT_SEED),
    ]
    child = await asyncio.create_subprocess_exec(
        *argv,
        env={"PYTHONPATH": str(ENGINE_SOURCES), "PATH": "/usr/bin:/bin"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(CHECKPOINT_TIMEOUT_S):
            output, _ = await child.communicate()
    except TimeoutError:
        child.kill()
        raise LabError(f"the checkpoint was not generated within {CHECKPOINT_TIMEOUT_S:.0f} s") from None
    if child.returncode != 0:
        raise LabError(f"generating the checkpoint failed:\n{output.decode('utf-8', 'replace')[-2000:]}")


async def run(
    place: Place, profile: Profile, emit: Emit, *, once: bool, torch_from: str | None
) -> tuple[dict[str, Any], Exit]:
    """The whole cycle. With ``once`` nothing is left behind, whatever happens."""
    if once and nodes.running(place):
        raise LabError("a lab is running; end it with `./start.sh lab --down`, or use it as it is")
    try:
        setup = await set_up(place, profile, emit, torch_from)
        return await _cycle(place, profile, emit, setup, once=once)
    finally:
        if once:
            await asyncio.to_thread(nodes.down, place)


def _session(place: Place, profile: Profile, emit: Emit) -> Session:
    return Session(profile, load_cluster(place.cluster_file), emit, strict_conformance=True)


async def _cycle(
    place: Place, profile: Profile, emit: Emit, setup: Setup, *, once: bool
) -> tuple[dict[str, Any], Exit]:
    begin, session = time.monotonic(), _session(place, profile, emit)
    await _doctor(session)
    try:
        served = await verbs.converging(session, "up")
        if served.exit_code != Exit.FINE or session.interrupted:
            return {"schema": "sparkyard/lab/v1", "ok": False, **_failures(served.data)}, served.exit_code
        ready_s = time.monotonic() - begin
        data = await _prove(place, session, setup)
    finally:
        # A session of its own: a Ctrl-C that ended the one before must not end the cleaning up.
        stopped = await verbs.converging(_session(place, profile, emit), "stop") if once else None
    data |= {"setup_s": round(setup.seconds, 1), "ready_s": round(ready_s, 1)}
    good = data["tokens_equal"] and (stopped is None or stopped.exit_code == Exit.FINE)
    return {"schema": "sparkyard/lab/v1", "ok": good, **data}, Exit.FINE if good else Exit.FAILED


def _failures(data: dict[str, Any]) -> dict[str, Any]:
    return {"failures": data.get("failures", [])}


async def _doctor(session: Session) -> None:
    """Say what the doctor finds; an error of it stops the lab as it would stop a real start."""
    goal, _ = session.goal()
    async with session.world() as world:
        found = (await diagnose(world, goal)).findings
    errors = [item for item in found if item.severity is Severity.ERROR and not item.because_of]
    counted = f"{len(errors)} errors, {sum(item.severity is Severity.WARNING for item in found)} warnings"
    session.emit(
        Said("note", f"doctor: {counted} (GPU, links and firmware are recordings, the rest is this machine)")
    )
    if errors:
        lines = "\n".join(f"  {item.node}: {item.check}: {item.measured}; {item.remedy}" for item in errors)
        raise SparkyardError(f"the doctor found errors:\n{lines}")


async def _prove(place: Place, session: Session, setup: Setup) -> dict[str, Any]:
    goal, _ = session.goal()
    profile = session.profile
    chunk = next(
        int(entry.value or 0)
        for entry in profile.settings
        if isinstance(entry, FlagSetting) and entry.flag == "--chunked-prefill-size"
    )
    asked = prompts.prompts(PROMPT_SEED, chunk)
    urls = [f"http://127.0.0.1:{goal.port(node, profile.ports.api)}" for node in goal.ranked]
    session.emit(Said("note", f"asking {len(asked)} prompts of the three ranks, then of one unpadded rank"))
    version = await _engine_version(urls[0])
    found = await asking.ask(urls[0], asked)
    rows = await asyncio.to_thread(asking.rows_read, urls)
    expected = await asyncio.to_thread(_reference, place, profile, setup.python, asked)
    result = compare(expected, found, chunk=chunk)
    if result.first_mismatch is not None:
        session.emit(Said("warning", f"answers differ: {result.first_mismatch.text()}"))
    return {
        "engine": f"sglang {version}",
        "tp": profile.parallel.tp,
        "ranks": len(urls),
        "tokens_equal": result.tokens_equal,
        "prompts": result.prompts,
        "engram_rows_read": rows,
        "comparison": _shown(result),
    }


def _shown(result: Equality) -> dict[str, Any]:
    return {key: value for key, value in result.as_json().items() if key not in {"tokens_equal", "prompts"}}


def _reference(
    place: Place, profile: Profile, python: Path, asked: tuple[prompts.Prompt, ...]
) -> tuple[Answer, ...]:
    folder = place.folder / "reference"
    shutil.rmtree(folder, ignore_errors=True)
    files = local.Files(
        python=python,
        engine=ENGINE_SOURCES,
        checkpoint=place.checkpoint,
        packs=folder / "packs",
        folder=folder,
    )
    with local.running(local.reference(profile), files) as running:
        return asyncio.run(asking.ask(running.url, asked))


async def _engine_version(url: str) -> str:
    async with httpx.AsyncClient(timeout=API_TIMEOUT_S, trust_env=False) as client:
        try:
            return str((await client.get(f"{url}/server_info")).json()["version"])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise LabError(f"{url}/server_info does not say which engine answers: {error}") from None


async def down(place: Place, profile: Profile, emit: Emit) -> Exit:
    """End the lab: its ranks, then its nodes."""
    code = Exit.FINE
    if place.cluster_file.exists():
        # Ranks outlive the SSH servers: those must be there to end them.
        await asyncio.to_thread(nodes.up, place)
        code = (await verbs.converging(_session(place, profile, emit), "stop")).exit_code
    await asyncio.to_thread(nodes.down, place)
    await asyncio.to_thread(nodes.give_ports_back, place)
    return code
