"""Start the job that packs this rank's Engram rows."""

from __future__ import annotations

from typing import Any

from node_agent import jobs
from node_agent.home import Home
from node_agent.wire import Report


def start(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Start the pack job of one store; it goes on when the channel dies."""
    job = f"pack-{args['store'][:16]}"
    argv = [
        args["python"],
        "-m",
        "sparkyard_engine.engram.pack",
        "--checkpoint",
        str(home.checkpoint),
        "--revision",
        args["revision"],
        "--tp",
        str(args["tp"]),
        "--rank",
        str(args["rank"]),
        "--ownership",
        args["ownership"],
        "--output",
        str(home.packs / args["store"]),
        "--status",
        str(home.jobs / job / "status.json"),
    ]
    env = {"PYTHONPATH": str(home.engines / args["engine"]), "OMP_NUM_THREADS": "1"}
    jobs.start(home, job, "pack", args["spec"], argv, env)
    return {"job": job}
