"""The lab's nodes, SSH servers and agents for real, the engine by a stand-in: the whole life cycle in seconds."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from orchestrator.lab import nodes
from orchestrator.lab.place import NODES, Place
from orchestrator.load import load_cluster
from orchestrator.model.event import Event
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.profile import Profile
from orchestrator.run import observe
from orchestrator.verbs import Answer, Session, converging
from sparkyard_engine.engram.hashing import Layout
from tests.clusters import lab_profile
from tests.engram_checkpoint import write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
CALL_TIMEOUT_S = 300
MODULES = Path(__file__).resolve().parent / "modules"
QUICK = {
    "join_s": 40,
    "ready_s": 40,
    "drain_s": 6,
    "memory_s": 3,
    "pack_s": 60,
    "canary_s": 10,
    "smoke_s": 30,
}


def quick_profile() -> Profile:
    """The lab's profile without what only the real engine needs, with short deadlines and no memory bounds."""
    data = lab_profile().model_dump(mode="json", by_alias=True)
    data["deadlines"] |= QUICK
    data["band"] = None
    data["memory"] |= {"gate_bytes": 0, "floor_below_start_bytes": 1 << 40, "back_tolerance_bytes": 1 << 40}
    return Profile.model_validate(data)


def engine_python(folder: Path) -> Path:
    """This Python, with the stand-in engine in reach behind whatever PYTHONPATH it is given."""
    path = folder / "engine-python"
    if not path.exists():
        path.write_text(
            f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{MODULES}" exec {sys.executable} "$@"\n'
        )
        path.chmod(0o755)
    return path


def layout_of_lab(vocab_size: int) -> Layout:
    """Tables for the layers that the lab's profile names."""
    return Layout.build(layer_ids=(1, 3), vocab_size=vocab_size, max_ngram_size=4, heads=8)


class StandinLab:
    """Three nodes with a small checkpoint in the true format."""

    def __init__(self, folder: Path, vocab_size: int = 200, key_file: Path | None = None) -> None:
        self.place = Place(folder)
        self.profile = quick_profile()
        if key_file is not None:
            ports = self.profile.ports.model_copy(update={"api_key_file": str(key_file)})
            self.profile = self.profile.model_copy(update={"ports": ports})
        self.events: list[Event] = []
        write_checkpoint(self.place.checkpoint, layout_of_lab(vocab_size), vocab_size)

    def __enter__(self) -> StandinLab:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        nodes.up(self.place)
        try:
            asyncio.run(converging(self.session(), "stop"))
        finally:
            nodes.down(self.place)
            nodes.give_ports_back(self.place)

    def up(self) -> None:
        """Write the cluster file and start what does not run."""
        nodes.prepare(self.place, self.profile, engine_python(self.place.folder.parent))
        nodes.up(self.place)

    def session(self) -> Session:
        """As the command line makes one, but strict about predictions."""
        return Session(
            self.profile, load_cluster(self.place.cluster_file), self.events.append, strict_conformance=True
        )

    def do(self, verb: str) -> Answer:
        """One converging verb."""
        self.events.clear()
        return asyncio.run(converging(self.session(), verb))

    def command(self, *words: str) -> list[str]:
        """The command line of the product on this lab."""
        profile = self.place.folder / "profile.yaml"
        if not profile.exists():
            text = yaml.safe_dump(self.profile.model_dump(mode="json", by_alias=True), sort_keys=False)
            profile.write_text(text, encoding="utf-8")
        argv = [sys.executable, "-m", "orchestrator", *words]
        return [*argv, "--profile", str(profile), "--cluster", str(self.place.cluster_file)]

    def call(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run the product as a person would; exit code and the JSON of standard output."""
        done = subprocess.run(
            self.command(*words, "--json"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=CALL_TIMEOUT_S,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout) if done.stdout else {}

    def forget(self) -> None:
        """Stop, and put the nodes back to where nothing was ever done."""
        assert self.do("stop").exit_code == 0
        for name in NODES:
            for entry in self.place.node(name).iterdir():
                if entry.name not in {"checkpoint", "agent"}:
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def facts(self) -> ClusterFacts:
        """One look."""

        async def go() -> ClusterFacts:
            async with self.session().world() as world:
                return await observe(world)

        return asyncio.run(go())

    def fault(self, word: str, rank: int) -> None:
        """Make the stand-in engine of one rank fail; an empty word heals."""
        folder = self.place.node(NODES[rank]) / "ranks"
        folder.mkdir(parents=True, exist_ok=True)
        if word:
            (folder / "fault").write_text(f"{word} {rank}")
        else:
            (folder / "fault").unlink(missing_ok=True)

    def processes(self) -> list[int]:
        """Everything that still runs below this lab's folder."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if str(self.place.folder).encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                        found.append(int(entry))
                except OSError:
                    continue
        return found
