"""Both packs die at every operation; the next run finishes and its bytes are those of a pack that nobody disturbed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sparkyard_engine.engram import manifest, pack
from sparkyard_engine.engram.errors import StoreError
from sparkyard_engine.engram.packjob import LOCK_NAME
from sparkyard_engine.slices import pack as slices
from sparkyard_engine.slices.manifest import FILE
from tests.engram_checkpoint import shard_header, write_checkpoint
from tests.engram_stores import LAYOUT, VOCAB
from tests.hardening import dying
from tests.hardening.figures import Figures

INDEX = "model.safetensors.index.json"
Main = Callable[[Sequence[str]], int]


def words(checkpoint: Path, output: Path, kind: str) -> list[str]:
    common = ["--checkpoint", str(checkpoint), "--revision", "r", "--tp", "3", "--rank", "1"]
    more = (
        ["--ownership", "balanced", "--workers", "1"]
        if kind == "tables"
        else ["--padded-heads", "12", "--padded-groups", "6"]
    )
    return [*common, *more, "--output", str(output), "--status", str(output.parent / "status.json")]


def make_checkpoint(folder: Path) -> None:
    """Two Engram layers, and a shard of weights of which every rank loads something."""
    write_checkpoint(folder, LAYOUT, VOCAB)
    index = json.loads((folder / INDEX).read_text())
    header = shard_header([("norm.weight", "U8", (30, 64)), ("surprise.weight", "U8", (7, 90))])
    (folder / "model-weights.safetensors").write_bytes(header + bytes(range(255)) * 10)
    index["weight_map"] |= dict.fromkeys(("norm.weight", "surprise.weight"), "model-weights.safetensors")
    (folder / INDEX).write_text(json.dumps(index))


def in_child(main: Main, argv: list[str], number: int, log: Path) -> int:
    """Exit code of the program in a forked child that dies before operation ``number``."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            dying.die_at(number, log)
            code = main(argv)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def content(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.iterdir() if path.name != LOCK_NAME}


@pytest.mark.parametrize(("kind", "main"), [("tables", pack.main), ("slices", slices.main)])
def test_it_dies_at_every_operation_and_the_next_run_finishes(
    tmp_path: Path, figures: Figures, kind: str, main: Main
) -> None:
    checkpoint = tmp_path / "checkpoint"
    make_checkpoint(checkpoint)
    (tmp_path / "whole").mkdir()
    argv = words(checkpoint, tmp_path / "whole" / "store", kind)
    assert in_child(main, argv, 0, tmp_path / "log") == 0
    whole = content(tmp_path / "whole" / "store")
    operations = dying.operations(tmp_path / "log")
    assert {"fsync", "rename"} <= set(operations)
    for number in range(1, len(operations) + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        argv, store = words(checkpoint, folder / "store", kind), folder / "store"
        code = in_child(main, argv, number, folder / "log")
        where = f"operation {number}: {operations[number - 1]}"
        assert code in {0, dying.EXIT_CODE}, where
        if (store / FILE).exists():
            assert content(store) == whole, f"{where}: a store with a manifest is a whole one"
        elif kind == "tables" and store.exists():
            with pytest.raises(StoreError):
                manifest.load(store)
        assert in_child(main, argv, 0, folder / "again") == 0, where
        assert content(store) == whole, where
        figures.add(f"crash points: pack of {kind} ended before an operation", code == dying.EXIT_CODE)
