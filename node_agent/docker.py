"""The Docker engine of this node, through its own command line: the client negotiates the API version itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from node_agent.wire import Refused

ASK_TIMEOUT_S = 30.0
"""For questions that read the engine's own records."""
WORDS_MAX_BYTES = 4000


def docker(*argv: str, timeout_s: float, stdin: str | None = None) -> str:
    """Run one command; its standard output. Refused with the engine's last words and the remedy."""
    client = client_path()
    try:
        done = subprocess.run(
            [client, *argv],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            input=stdin,
            env=environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"docker {argv[0]} gave no answer within {timeout_s:.0f} s", kind="timeout") from None
    if done.returncode != 0:
        raise Refused(f"docker {argv[0]}: {explain(done.stderr or done.stdout)}")
    return done.stdout


def client_path() -> str:
    """The Docker client. Refused when there is none."""
    client = shutil.which("docker")
    if client is None:
        raise Refused("docker is not installed: no client on PATH; install the Docker engine, then run again")
    return client


def environment() -> dict[str, str]:
    """What the client may see: nothing of the caller's Docker settings but the place of the engine."""
    kept = ("PATH", "HOME", "LANG", "DOCKER_HOST")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"DOCKER_BUILDKIT": "1"}


def explain(words: str) -> str:
    """The engine's last words, with the remedy where the cause is known."""
    words = words.strip()[-WORDS_MAX_BYTES:]
    if "permission denied" in words and "docker.sock" in words:
        return f"{words}; add this account to the group docker, log in again"
    if "Cannot connect to the Docker daemon" in words:
        return f"{words}; start it: sudo systemctl start docker"
    if "no space left on device" in words:
        return f"{words}; make room below the engine's data root, for example with prune"
    return words or "it failed without a word"


def lines(text: str) -> list[dict[str, Any]]:
    """JSON objects, one a line (`--format '{{json .}}'`). Refused for anything else."""
    found = []
    for line in text.splitlines():
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError:
                raise Refused(f"docker answered something else than JSON: {line[:200]!r}") from None
            if not isinstance(value, dict):
                raise Refused(f"docker answered {type(value).__name__} where an object belongs")
            found.append(value)
    return found


def present() -> bool:
    """Whether a Docker client is installed; says nothing about the engine."""
    return shutil.which("docker") is not None
