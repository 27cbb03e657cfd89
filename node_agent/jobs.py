"""Long work: a process of its own that survives the channel, is found again, and is cancelled only explicitly.

A job's folder holds `spec.json`, `pid.json` (the runner), `status.json` (written by the work itself,
docs/formats.md), `exit.json` (written by the runner at the end) and `log`.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

from node_agent import process
from node_agent.files import read_json, tail, write_json
from node_agent.home import Home
from node_agent.records import is_digest, text, whole
from node_agent.tree import DIGESTS

LOG_TAIL_LINES = 20
FETCH_MODULE = "sparkyard_engine.fetch"


def start(home: Home, job: str, kind: str, identity: str, argv: list[str], env: dict[str, str]) -> None:
    """Start a job, unless the same one is running. The folder of an earlier, ended run is replaced."""
    folder = home.jobs / job
    if process.alive(folder / "pid.json") is not None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(
        folder / "spec.json", {"id": job, "kind": kind, "identity": identity, "argv": argv, "env": env}
    )
    process.spawn("run-job", folder, folder / "log")


def run(folder: Path) -> int:
    """The runner: runs the job of ``folder`` as its child and writes down how it ended."""
    spec = read_json(folder / "spec.json")
    if spec is None or not process.claim(folder):
        return 2
    try:
        code = subprocess.run(
            spec["argv"], env={**os.environ, **spec["env"]}, cwd=folder, check=False
        ).returncode
        note = ""
    except OSError as error:
        code, note = 127, f"{spec['argv'][0]}: {error.strerror}"
    # Blocks of 512 bytes that the kernel wrote for the job (getrusage(2)): shows that nothing was done twice.
    written = resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock * 512
    write_json(folder / "exit.json", {"code": code, "note": note, "written_bytes": written})
    return code


def facts(home: Home) -> list[dict[str, Any]]:
    """One entry a job that this node remembers."""
    found = []
    for folder in sorted(home.jobs.iterdir()) if home.jobs.is_dir() else []:
        spec = read_json(folder / "spec.json")
        if (
            spec is None
            or not text(spec, "id")
            or not text(spec, "kind")
            or not is_digest(spec.get("identity"))
        ):
            continue
        status = read_json(folder / "status.json") or {}
        ended = read_json(folder / "exit.json")
        if ended is not None:
            state = "done" if whole(ended, "code") == 0 else "failed"
        else:
            state = "running" if process.alive(folder / "pid.json") is not None else "lost"
        error = text(status, "error") or text(ended, "note")
        if state == "failed" and not error:
            error = f"exit code {whole(ended, 'code')}"
        if state == "done" and (gone := _gone(spec.get("argv"))):
            state, error = "failed", f"{gone} is gone since it was fetched"
        if state == "lost":
            error = "the job's process is gone and left no exit code (killed, or the node was restarted)"
        found.append(
            {
                "id": spec["id"],
                "kind": spec["kind"],
                "spec": spec["identity"],
                "state": state,
                "done": whole(status, "done") or 0,
                "total": whole(status, "total") or 0,
                "unit": text(status, "unit"),
                "written_bytes": whole(ended, "written_bytes") or 0,
                "error": error,
                "log_tail": tail(folder / "log", LOG_TAIL_LINES) if state in {"failed", "lost"} else [],
            }
        )
    return found


def _gone(argv: Any) -> str:
    """A file that a fetch brought and that is not there any more; empty when all are, and for other jobs."""
    if not isinstance(argv, list) or FETCH_MODULE not in argv or "--output" not in argv[:-1]:
        return ""
    output = Path(str(argv[argv.index("--output") + 1]))
    files = (read_json(output / DIGESTS) or {}).get("files")
    names = sorted(files) if isinstance(files, dict) else [DIGESTS]
    return next((str(output / name) for name in names if not (output / name).exists()), "")
