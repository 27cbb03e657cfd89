"""Ranks: start one behind its guard, open the launch gate, end one and prove that it is gone."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from node_agent import boots, look, process
from node_agent.actions import containers, desired
from node_agent.files import read_json, write_json
from node_agent.home import Home
from node_agent.wire import Refused, Report

GATE_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 20.0
READ_BYTES = 1 << 20
LOCKED = 75
"""Exit code of a second process that wants the same folder (EX_TEMPFAIL of sysexits.h)."""
KEPT_FOLDERS = 12
"""Folders of earlier starts that are kept for their logs."""


def start(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Start a rank unless it is running; a boot record with MemAvailable from before is written first."""
    deployment, generation, rank = args["deployment"], int(args["generation"]), int(args["rank"])
    folder = home.rank_folder(deployment, generation, rank)
    image = args.get("image") or ""
    if process.alive(folder / "pid.json") is not None or (image and _contained(home, args)):
        return {"started": False}
    desired.check_serving(home, deployment, generation)
    engine = home.engines / args["engine"]
    if not image and not engine.is_dir():
        raise Refused(f"engine package {args['engine'][:12]} is not installed; run build")
    check_library(args["body"])
    containers.secrets(args["body"])
    _prune(home)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = boots.begin(home, deployment, generation)
    checkpoint = containers.checkpoint_folder(home) if image else str(home.checkpoint)
    write_json(folder / "rank.json", _here(home, args["body"], folder, engine, before, checkpoint))
    guard = ["-m", "sparkyard_engine.guard", str(folder / "rank.json")]
    mark = {look.RANK_MARK: str(folder / "rank.json")}
    write_json(
        folder / "spec.json",
        {
            "body": args["body"],
            "identity": args["spec"],
            "started_unix_s": time.time(),
            "image": image,
            "engine": args["engine"],
            "argv": [args["python"], *guard],
            "env": {"PYTHONPATH": str(engine), **mark},
        },
    )
    if image:
        containers.start(home, args, folder, guard, mark)
        return {"started": True}
    process.spawn("run-rank", folder, folder / "guard.out")
    return {"started": True}


def check_library(body: dict[str, Any]) -> None:
    """Refused when the NCCL library that the spec names is not the very file that it names."""
    wanted = body.get("nccl")
    if wanted is None:
        return
    place = Path(str(wanted["library"]))
    digest = hashlib.sha256()
    try:
        with place.open("rb") as file:
            while block := file.read(READ_BYTES):
                digest.update(block)
    except OSError as error:
        raise Refused(f"{place}: {error.strerror}; the profile names it as nccl.library") from None
    found = digest.hexdigest()
    if found != wanted["sha256"]:
        raise Refused(
            f"{place} has SHA-256 {found[:12]}…, the profile's nccl.sha256 is {str(wanted['sha256'])[:12]}…: "
            "put the right file there, or correct the profile"
        )


def _contained(home: Home, args: dict[str, Any]) -> bool:
    return any(known["running"] and known["key"] == containers.key(args) for known in containers.states(home))


def _here(
    home: Home, body: dict[str, Any], folder: Path, engine: Path, before_bytes: int, checkpoint: str
) -> dict[str, Any]:
    """The rank spec with this node's own folders and measured memory in the places that the controller left open."""
    places = {
        "{directory}": str(folder),
        "{engine}": str(engine),
        "{checkpoint}": checkpoint,
        "{packs}": str(home.packs),
        "{slices}": str(home.slices),
    }

    def put(value: Any) -> Any:
        match value:
            case str():
                for name, path in places.items():
                    value = value.replace(name, path)
                return value
            case list():
                return [put(entry) for entry in value]
            case dict():
                return {key: put(entry) for key, entry in value.items()}
        return value

    here = {key: put(value) for key, value in body.items()}
    below = here.pop("memory_floor_below_start_bytes", None)
    if below is not None:
        here["memory_floor_bytes"] = max(0, before_bytes - int(below))
    return here


def run(folder: Path) -> int:
    """In the new process: become the guard."""
    spec = read_json(folder / "spec.json")
    if spec is not None and process.claim(folder):
        os.execvpe(spec["argv"][0], spec["argv"], {**os.environ, **spec["env"]})  # noqa: S606 - our own argument list
    return LOCKED


def _prune(home: Home) -> None:
    folders = (
        sorted(home.ranks.iterdir(), key=lambda path: path.stat().st_mtime) if home.ranks.is_dir() else []
    )
    for folder in folders[:-KEPT_FOLDERS]:
        spec = read_json(folder / "spec.json") or {}
        if spec.get("image") and _contained(home, spec["body"]):
            continue
        if process.alive(folder / "pid.json") is None:
            shutil.rmtree(folder, ignore_errors=True)


def open_gate(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Tell SGLang's launch gate on this node to let all ranks go on."""
    url = f"http://127.0.0.1:{int(args['port'])}/gate/activate"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data=b"", method="POST"), timeout=GATE_TIMEOUT_S
        ):
            pass
    except (urllib.error.URLError, OSError) as error:
        raise Refused(f"the launch gate at {url} does not answer: {error}") from None
    folder = home.rank_folder(args["deployment"], int(args["generation"]), 0)
    (folder / "gate-open").touch()
    return {}


def stop(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """End a rank: SIGTERM to its guard, after `grace_s` SIGKILL to all that it started. Refused when some stay."""
    folder = home.rank_folder(args["deployment"], int(args["generation"]), int(args["rank"]))
    if (read_json(folder / "spec.json") or {}).get("image"):
        return containers.stop(home, args)
    pid = process.alive(folder / "pid.json")
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + float(args["grace_s"])
        while process.alive(folder / "pid.json") is not None and time.monotonic() < end:
            time.sleep(0.1)
    mark = str(folder / "rank.json")
    leftover = len(process.marked(look.RANK_MARK).get(mark, []))
    if survivors := process.kill_marked(look.RANK_MARK, mark, KILL_TIMEOUT_S):
        raise Refused(f"rank {args['rank']} does not end: processes {survivors} survive SIGKILL")
    return {"killed_processes": leftover}
