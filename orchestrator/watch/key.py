"""The key that the monitor's service connects with: its own, so that it can be taken away alone, and restricted."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from orchestrator.each import each
from orchestrator.errors import SparkyardError
from orchestrator.model.cluster import Cluster
from orchestrator.remote.node import Ask, reply
from orchestrator.remote.nodes import nodes
from orchestrator.run import World

NAME = "monitor_ed25519"
KEYGEN_TIMEOUT_S = 30.0
AUTHORIZE_TIMEOUT_S = 30.0


class KeyRefusedError(SparkyardError):
    """The key could not be made, put in place or used; the text names the node."""


def needed(cluster: Cluster) -> bool:
    """Nodes of a lab know only the lab's own key, which serves nothing else."""
    return cluster.topology != "single-host" and any(node.transport == "ssh" for node in cluster.nodes)


def with_key(cluster: Cluster, key: Path) -> Cluster:
    """The cluster, every node that is reached by SSH with this key."""
    return cluster.model_copy(
        update={
            "nodes": tuple(
                node.model_copy(update={"key": str(key)}) if node.transport == "ssh" else node
                for node in cluster.nodes
            )
        }
    )


def make(folder: Path) -> tuple[Path, str]:
    """The private file and the public key `ssh-ed25519 …` below ``folder``; made when it is not there.

    KeyRefusedError when ssh-keygen is missing or fails.
    """
    private = folder / NAME
    if not private.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "sparkyard monitor",
            "-f",
            str(private),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=KEYGEN_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise KeyRefusedError(f"{private}: no key could be made: {error}") from error
    public = private.with_suffix(".pub").read_text("ascii").split()
    return private, " ".join(public[:2])


async def put_in_place(world: World, deployment: str, folder: Path) -> Path:
    """Make the key, authorize it on every node that is reached by SSH, and prove that each takes it.

    KeyRefusedError names every node that did not take it.
    """
    private, public = await asyncio.to_thread(make, folder)
    names = [node.name for node in world.cluster.nodes if node.transport == "ssh"]
    asked = Ask("authorize", {"key": public, "deployment": deployment})
    replies = await each(names, lambda name: reply(world.nodes[name], asked, timeout_s=AUTHORIZE_TIMEOUT_S))
    _raise({name: answer.failure.message for name, answer in replies.items() if answer.failure is not None})
    own = nodes(with_key(world.cluster, private))
    try:
        tried = await each(names, lambda name: reply(own[name], Ask("ping"), timeout_s=AUTHORIZE_TIMEOUT_S))
    finally:
        await asyncio.gather(*(node.close() for node in own.values()))
    _raise(
        {
            name: f"{replies[name].value.get('path')} has the monitor's key, but {answer.failure.message}"
            for name, answer in tried.items()
            if answer.failure is not None
        }
    )
    return private


def _raise(faults: dict[str, str]) -> None:
    if faults:
        lines = "; ".join(f"{name}: {text}" for name, text in faults.items())
        raise KeyRefusedError(f"monitor --install: {lines}")
