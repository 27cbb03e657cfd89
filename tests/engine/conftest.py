"""What the engine's tests share: a small checkpoint of the lab's model, and its packed stores."""

import subprocess
import sys
from pathlib import Path

import pytest
from lab_small import SMALL, TP

from sparkyard_engine.lab.checkpoint import make


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's checkpoint with small tables."""
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    assert make(folder, seed=7, engram_vocab_size=SMALL)
    return folder


@pytest.fixture(scope="session")
def stores(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Its rows, dealt out to three ranks."""
    folder = tmp_path_factory.mktemp("stores")
    for rank in range(TP):
        words = ["--checkpoint", checkpoint, "--revision", "seed-7", "--tp", TP, "--rank", rank]
        words += [
            "--ownership",
            "balanced",
            "--output",
            folder / str(rank),
            "--status",
            folder / f"{rank}.json",
        ]
        command = [sys.executable, "-m", "sparkyard_engine.engram.pack", *map(str, words)]
        subprocess.run(command, check=True, env={"PYTHONPATH": "engine", "PATH": "/usr/bin:/bin"})
    return [folder / str(rank) for rank in range(TP)]
