"""What the integration tests run on a yard: a checkpoint, a profile for its nodes, and sparkyard's own command line."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Event
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.profile import Profile
from orchestrator.run import observe
from orchestrator.verbs import Answer, Session, converging
from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import write_checkpoint
from tests.integration.yard.session import Yard, network

ROOT = Path(__file__).resolve().parents[2]
VERB_BOUND_S = 400.0
BASE = "sparkyard-test/base:1"


@dataclass
class Fleet:
    """A yard with a profile. Every prediction is held against the truth."""

    yard: Yard
    profile: Profile
    events: list[Event] = field(default_factory=list)

    def session(self) -> Session:
        """As the command line makes one, but strict about predictions."""
        return Session(
            self.profile, load_cluster(self.yard.cluster), self.events.append, strict_conformance=True
        )

    def do(self, verb: str) -> Answer:
        """Run a converging verb from the controller's network."""
        with network(self.yard.layout.controller):
            return asyncio.run(converging(self.session(), verb))

    def facts(self) -> ClusterFacts:
        """One look."""

        async def go() -> ClusterFacts:
            session = self.session()
            async with session.world() as world:
                return await observe(world)

        with network(self.yard.layout.controller):
            return asyncio.run(go())

    def command_line(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the program itself."""
        profile = self.yard.folder / "profile.yaml"
        profile.write_text(yaml.safe_dump(self.profile.model_dump(mode="json", by_alias=True)))
        argv = [sys.executable, "-m", "orchestrator", *words, "--profile", str(profile)]
        argv += ["--cluster", str(self.yard.cluster)]
        return self.yard.control("env", "-C", str(ROOT), *argv, timeout_s=VERB_BOUND_S)

    def titles(self, answer: Answer) -> list[str]:
        """Titles of the stages that ran."""
        return [str(stage["title"]) for stage in answer.data["stages"]]


def make(yard: Yard) -> Fleet:
    """A docker profile for all nodes of the yard, a stand-in base image and a small checkpoint on the head."""
    head = yard.layout.nodes[0].name
    cache = Path.home() / ".cache" / "sparkyard" / "yard"
    shutil.copy(base_image(cache), yard.disk(head) / "base.tar")
    yard.run(head, "docker", "import", "/srv/nvme/base.tar", BASE, timeout_s=600)
    (yard.disk(head) / "base.tar").unlink()
    layout = Layout.build(layer_ids=(1, 3), vocab_size=200, max_ngram_size=4, heads=8)
    write_checkpoint(yard.disk(head) / "checkpoint", layout, 200)
    body = load_profile("lab").model_dump(mode="json", by_alias=True)
    body["name"] = "yard"
    body["engine"] |= {"runtime": "docker", "image": BASE}
    body["parallel"] = {"tp": len(yard.layout.nodes), "padding": None}
    return Fleet(yard, Profile.model_validate(body))


def base_image(cache: Path) -> Path:
    """A stand-in for the base image, as a tar for `docker import`: Debian with Python, numpy and a C++ compiler."""
    target = cache / "base-amd64.tar"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = cache / "part-base-amd64.tar"
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3-minimal,python3-numpy,g++"]
        argv += [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale", "i18n")]
        argv += ["--dpkgopt=path-exclude=/usr/lib/python3/dist-packages/numpy/*/tests/*", "bookworm"]
        subprocess.run([*argv, str(partial), *mirror()], check=True, capture_output=True, timeout=900)
        partial.rename(target)
    return target


def mirror() -> list[str]:
    """The archive that apt uses here."""
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Codename: bookworm"]
    found = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return sorted(set(found))[:1]
