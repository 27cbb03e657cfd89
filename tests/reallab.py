"""The lab with real SGLang, driven as a person drives it; booted once for all tests that only use it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from orchestrator.errors import Exit
from orchestrator.lab.place import Place
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Event
from orchestrator.model.profile import Profile
from orchestrator.verbs import Session, converging

ROOT = Path(__file__).resolve().parents[1]
CYCLE_TIMEOUT_S = 900
VERB_TIMEOUT_S = 300
ANSWER_TIMEOUT_S = 120.0


def call(state: Path, *words: str, timeout_s: float = VERB_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """`./start.sh WORDS` with a lab of its own, which lives below ``state``."""
    done = subprocess.run(
        ["./start.sh", *words],
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def leftovers(state: Path) -> list[str]:
    """Processes that name the lab's folder in their command line or environment."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                text = (
                    Path(f"/proc/{entry}/cmdline").read_bytes() + Path(f"/proc/{entry}/environ").read_bytes()
                )
            except OSError:
                continue
            if f"{state}/sparkyard".encode() in text:
                found.append(Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ")[:200])
    return found


@dataclass
class RealLab:
    """The lab below ``state``, from inside this process."""

    state: Path
    profile: Profile = field(default_factory=lambda: load_profile("lab"))
    events: list[Event] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return Place(self.state / "sparkyard" / "lab")

    def do(self, verb: str) -> None:
        """A verb that must succeed."""
        session = Session(self.profile, load_cluster(self.place.cluster_file), self.events.append)
        answer = asyncio.run(converging(session, verb))
        assert answer.exit_code == Exit.FINE, answer.data

    def ask(self, text: str, tokens: int) -> int:
        """Tokens that the API generated."""
        head = load_cluster(self.place.cluster_file).ranked[0]
        answer = httpx.post(
            f"http://127.0.0.1:{self.profile.ports.api + head.port_offset}/v1/completions",
            json={
                "model": self.profile.model.served_name,
                "prompt": text,
                "max_tokens": tokens,
                "ignore_eos": True,
            },
            timeout=ANSWER_TIMEOUT_S,
            trust_env=False,
        )
        return int(answer.raise_for_status().json()["usage"]["completion_tokens"])
