"""What the integration tests run on a yard: a checkpoint, a profile for its nodes, and sparkyard's own command line."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.checks import CHECKS
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Event
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.profile import Profile
from orchestrator.run import observe
from orchestrator.verbs import Answer, Session, converging
from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import write_checkpoint
from tests.integration.yard import nodes
from tests.integration.yard.session import Yard, network
from tests.standin_engine.lab import MODULES, QUICK

ROOT = Path(__file__).resolve().parents[2]
VERB_BOUND_S = 400.0
BASE = "sparkyard-test/base:1"
PACKAGES = "python3-minimal,python3-numpy,python3-psutil,g++"
"""Of the stand-in base image: what the Dockerfile's own steps and the engine's own programs need."""
ALTERNATIVES = (
    'for lib in "$1"/usr/lib/*-linux-gnu; do ln -s blas/libblas.so.3 lapack/liblapack.so.3 "$lib"; done'
)
"""What configuring the packages would do, as far as numpy needs it."""
TRIM = (
    'cd "$1"/usr && rm -rf share/locale share/doc share/man share/info bin/*lto-dump* bin/*ld.gold* bin/*-dwp bin/perl*'
    " lib/*-linux-gnu/gconv lib/*-linux-gnu/*san.so* lib/*-linux-gnu/libc.a lib/gcc/*/*/*san.a"
    " lib/gcc/*/*/libstdc++.a lib/gcc/*/*/cc1 lib/gcc/*/*/lto1"
)
"""Half of the bytes, which no test needs: every one of them travels to three nodes many times."""


NO_SPARKS = (*(check.id for check in CHECKS), "store")
"""The doctor is right to refuse these nodes: they are no Sparks. What is compared between ranks must be the same.
And a machine's virtual disk calls itself a turning one.
"""


@dataclass
class Fleet:
    """A yard with a profile and a cluster file. Every prediction is held against the truth."""

    yard: Yard
    profile: Profile
    cluster: Path
    events: list[Event] = field(default_factory=list)

    def session(self) -> Session:
        """As the command line makes one, but strict about predictions."""
        cluster = load_cluster(self.cluster)
        return Session(self.profile, cluster, self.events.append, strict_conformance=True, ignore=NO_SPARKS)

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
        return self.yard.control("env", "-C", str(ROOT), *self.argv(*words), timeout_s=VERB_BOUND_S)

    def argv(self, *words: str) -> list[str]:
        """Its command line with this fleet's files."""
        profile = self.yard.folder / f"profile-{self.profile.name}.yaml"
        profile.write_text(yaml.safe_dump(self.profile.model_dump(mode="json", by_alias=True)))
        argv = [sys.executable, "-m", "orchestrator", *words, "--profile", str(profile)]
        return [*argv, "--cluster", str(self.cluster)]

    @contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """The program, while it runs; killed at the end of the block if it still does."""
        argv = [*nodes.controller(self.yard.layout), "env", "-C", str(ROOT), *self.argv(*words)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            try:
                yield running
            finally:
                running.kill()

    def titles(self, answer: Answer) -> list[str]:
        """Titles of the stages that ran."""
        return [str(stage["title"]) for stage in answer.data["stages"]]

    def steps(self, answer: Answer) -> list[dict[str, Any]]:
        """What a verb did, over all of its stages."""
        return [step for stage in answer.data["stages"] for step in stage["steps"]]


def make(yard: Yard) -> Fleet:
    """A docker profile for all nodes of the yard, a stand-in base image and a small checkpoint on the head."""
    head = yard.layout.nodes[0].name
    cache = Path.home() / ".cache" / "sparkyard" / "yard"
    shutil.copy(base_image(cache), yard.disk(head) / "base.tar")
    with tarfile.open(yard.disk(head) / "base.tar", "a") as tar:
        tar.add(MODULES / "sglang", "usr/lib/python3/dist-packages/sglang")
    yard.run(head, "docker", "import", "/srv/nvme/base.tar", BASE, timeout_s=600)
    (yard.disk(head) / "base.tar").unlink()
    layout = Layout.build(layer_ids=(1, 3), vocab_size=200, max_ngram_size=4, heads=8)
    write_checkpoint(yard.disk(head) / "checkpoint", layout, 200)
    body = load_profile("lab").model_dump(mode="json", by_alias=True)
    body["name"] = "yard"
    body["engine"] |= {"runtime": "docker", "image": BASE}
    body["parallel"] = {"tp": len(yard.layout.nodes), "padding": None}
    return Fleet(yard, Profile.model_validate(body), yard.cluster)


def deployment(
    fleet: Fleet, name: str, members: Sequence[str], first_port: int, key_file: str = "", root: str = ""
) -> Fleet:
    """A deployment of its own on some nodes of the fleet, with the stand-in engine: short deadlines, no memory bounds.

    Args:
        members: names of nodes, the head first.
        key_file: path on the head of the file with the API key; empty: no key.
        root: its folder on every node; empty: that of the fleet. A node has one desired record a folder.
    """
    folder = fleet.yard.folder / name
    folder.mkdir(exist_ok=True)
    cluster = yaml.safe_load(fleet.yard.cluster.read_text())
    cluster["nodes"] = [node for member in members for node in cluster["nodes"] if node["name"] == member]
    for node in cluster["nodes"]:
        node["root"] = root or node["root"]
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(cluster, sort_keys=False))
    path.chmod(0o600)
    body = fleet.profile.model_dump(mode="json", by_alias=True)
    body["name"] = name
    padding = (
        load_profile("lab").parallel.padding if len(members) == 3 else None
    )  # groups and heads for three
    body["parallel"] = {"tp": len(members), "padding": padding.model_dump() if padding else None}
    body["ports"] |= {"api": first_port, "gate": first_port + 10, "rendezvous": first_port + 20}
    body["ports"]["api_key_file"] = key_file or None
    body["deadlines"] |= QUICK | {"join_s": 90, "ready_s": 90, "pack_s": 300}  # containers on two cores
    body["band"] = None
    body["memory"] |= {"gate_bytes": 0, "floor_below_start_bytes": 1 << 40, "back_tolerance_bytes": 1 << 40}
    return Fleet(fleet.yard, Profile.model_validate(body), path)


def base_image(cache: Path, architecture: str = "amd64") -> Path:
    """A stand-in for the base image, as a tar for `docker import`: Debian with Python, numpy and a C++ compiler.

    The packages are unpacked, not configured: half a minute, and nothing of another architecture has to run.
    Who comes second waits for it.
    """
    target = (
        cache
        / f"base-{hashlib.sha256((PACKAGES + ALTERNATIVES + TRIM).encode()).hexdigest()[:8]}-{architecture}.tar"
    )
    cache.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        partial = target.with_name(f"part-{target.name}")
        argv = ["mmdebstrap", "--quiet", "--variant=extract", f"--architectures={architecture}"]
        argv += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--include=?essential"]
        argv += [f"--include={PACKAGES}", f"--extract-hook={ALTERNATIVES}", f"--extract-hook={TRIM}"]
        argv += ["bookworm", str(partial), *mirror()]
        subprocess.run(argv, check=True, capture_output=True, timeout=900)
        partial.rename(target)
    return target


def mirror() -> list[str]:
    """The archive that apt uses here."""
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Codename: bookworm"]
    found = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return sorted(set(found))[:1]
