"""Start the jobs that run the engine's own programs: pack Engram rows or weight slices, fetch the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from node_agent import jobs
from node_agent.actions import containers
from node_agent.docker import ASK_TIMEOUT_S, client_path, docker, environment
from node_agent.home import Home
from node_agent.wire import Report

REMOVE_TIMEOUT_S = 60.0
HUB_VARIABLES = ("HF_ENDPOINT", "HF_TOKEN_PATH", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
"""What the hub's client reads; the token itself is never in an environment or on a command line."""


def start(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Start the pack job of one store; it goes on when the channel dies."""
    job = f"pack-{args['store'][:16]}"
    image = args.get("image") or ""
    checkpoint = containers.checkpoint_folder(home) if image else str(home.checkpoint)
    slices = args.get("what") == "slices"
    stores = home.slices if slices else home.packs
    stores.mkdir(parents=True, exist_ok=True)
    module = "sparkyard_engine.slices.pack" if slices else "sparkyard_engine.engram.pack"
    program = ["-m", module, "--checkpoint", checkpoint, "--output", str(stores / args["store"])]
    program += ["--revision", args["revision"], "--tp", str(args["tp"]), "--rank", str(args["rank"])]
    if slices:
        program += ["--padded-heads", str(args["padded_heads"])]
        program += ["--padded-groups", str(args["padded_groups"])]
    else:
        program += ["--ownership", args["ownership"]]
    program += ["--status", str(home.jobs / job / "status.json")]
    if image:
        folders = {containers.checkpoint_root(home): False, str(stores): True, str(home.jobs): True}
        argv, env = _in_container(home, job, image, program, folders, {}), environment()
    else:
        argv = [args["python"], *program]
        env = {"PYTHONPATH": str(home.engines / args["engine"]), "OMP_NUM_THREADS": "1"}
    jobs.start(home, job, "pack", args["spec"], argv, env)
    return {"job": job}


def fetch(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Start the job that fetches the checkpoint; it goes on when the channel dies, and where it stopped."""
    job, target = "fetch", Path(args["path"])
    target.mkdir(parents=True, exist_ok=True)
    program = ["-m", "sparkyard_engine.fetch", "--repository", args["repository"]]
    program += ["--revision", args["revision"], "--output", str(target)]
    program += ["--status", str(home.jobs / job / "status.json")]
    hub = {name: os.environ[name] for name in HUB_VARIABLES if name in os.environ}
    if args.get("image"):
        folders = {str(target): True, str(home.jobs): True}
        argv, env = _in_container(home, job, args["image"], program, folders, hub), environment()
    else:
        argv = [args["python"], *program]
        env = {"PYTHONPATH": str(home.engines / args["engine"]), **hub}
    jobs.start(home, job, job, args["spec"], argv, env)
    return {"job": job}


def _in_container(
    home: Home, job: str, image: str, program: list[str], folders: dict[str, bool], env: dict[str, str]
) -> list[str]:
    """The job's process is the Docker client, attached: it ends as the container ends, and its signals get there.

    What a client that was killed left running is ended first: a store has one writer.
    """
    labels = {containers.JOB: job, containers.NODE: home.node}
    wanted = [word for name, value in labels.items() for word in ("--filter", f"label={name}={value}")]
    if old := docker("ps", "--all", "--quiet", *wanted, timeout_s=ASK_TIMEOUT_S).split():
        docker("rm", "--force", *old, timeout_s=REMOVE_TIMEOUT_S)
    argv = containers.arguments(home, labels, image, folders, {"OMP_NUM_THREADS": "1", **env})
    return [client_path(), "run", "--rm", *argv, *program]
