"""Power goes after every system call of the packs and of every function that replaces a file; what is left is found.

The system calls are those of the real programs (strace); the model of the disk is in `powerloss.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path

import pytest

from sparkyard_engine.engram import pack
from sparkyard_engine.slices import pack as slices
from tests.hardening.figures import Figures
from tests.hardening.powerloss import WAYS, Disk, Op, record
from tests.hardening.test_crash_pack import content, in_child, make_checkpoint, words

ROOT = Path(__file__).resolve().parents[2]
TIMES = 3
"""States of the kind `any` for each system call."""
PYTHONPATH = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "engine")]),
    "PYTHONDONTWRITEBYTECODE": "1",
}
MODULES = {
    "tables": ("sparkyard_engine.engram.pack", pack.main),
    "slices": ("sparkyard_engine.slices.pack", slices.main),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "checkpoint"
    make_checkpoint(folder)
    return folder


def begin_with(state: str, folder: Path, whole: Path) -> None:
    """What is there before the pack: nothing, half a store, or a store with a manifest and a file cut short."""
    store = folder / "store"
    match state:
        case "half":
            shutil.copytree(whole, store)
            (store / "manifest.json").unlink()
            (store / "layer-14.rows").rename(store / "layer-14.rows.partial")
            (store / "layer-1.rows").unlink()
        case "cut":
            shutil.copytree(whole, store)
            os.truncate(store / "layer-1.rows", 8192)
    (store / ".pack.lock").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("kind", "state"), [("tables", "nothing"), ("tables", "half"), ("tables", "cut"), ("slices", "nothing")]
)
def test_a_pack_after_which_the_power_went_is_whole_or_is_made_whole(
    tmp_path: Path, checkpoint: Path, figures: Figures, kind: str, state: str
) -> None:
    module, main = MODULES[kind]
    (tmp_path / "whole").mkdir()
    assert in_child(main, words(checkpoint, tmp_path / "whole" / "store", kind), 0, tmp_path / "log") == 0
    whole = content(tmp_path / "whole" / "store")
    folder = tmp_path / "run"
    folder.mkdir()
    begin_with(state, folder, tmp_path / "whole" / "store")
    disk = Disk.of(folder)
    argv = [sys.executable, "-m", module, *words(checkpoint, folder / "store", kind)]
    ops = record(argv, folder, tmp_path / "strace", PYTHONPATH)
    assert {"write", "sync", "rename"} <= {op.kind for op in ops}
    assert content(folder / "store") == whole
    chance = random.Random(7)  # noqa: S311
    for number, op in enumerate(ops, 1):
        disk.do(op)
        if op.kind in {"open", "mark"} and not op.create:
            continue
        for how in (*WAYS, *["any"] * (TIMES - 1)):
            loses(disk, chance, how, tmp_path / "after", folder)
            argv = words(checkpoint, tmp_path / "after" / "store", kind)
            where = f"{kind} from {state}: after call {number} ({op.kind} {Path(op.path).name}), {how}"
            assert in_child(main, argv, 0, tmp_path / "log") == 0, where
            assert content(tmp_path / "after" / "store") == whole, where
            figures.add("power losses: states of a pack's folder, each found and made whole")


def loses(disk: Disk, chance: random.Random, how: str, target: Path, folder: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    disk.after_loss(chance, how, target, folder)


WRITE_WHOLE = """
import json
from sparkyard_engine.engram.manifest import write_whole
def write(path, value):
    write_whole(path, json.dumps(value).encode())
"""
WRITERS = {
    "the agent's records": ("from node_agent.files import write_json as write", True),
    "the engine's files": ("from sparkyard_engine.files import write_json as write", False),
    "manifests and job status": (WRITE_WHOLE, True),
}
PROGRAM = """
import sys
from pathlib import Path
{imported}
for number in range(4):
    write(Path(sys.argv[1]) / "file.json", {{"number": number, "filler": str(number) * 3000}})
    sys.stdout.write(f"mark {{number}}\\n"); sys.stdout.flush()
"""


def number_in(path: Path) -> int:
    """Which version is there; -1: none. Anything else than a whole one is an error."""
    if not path.exists():
        return -1
    value = json.loads(path.read_bytes())
    assert value["filler"] == str(value["number"]) * 3000
    return int(value["number"])


def marks(op: Op, done: int) -> int:
    return int(op.path.split()[1]) if op.kind == "mark" else done


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_file_that_is_replaced_is_the_old_or_the_new_one(
    tmp_path: Path, figures: Figures, name: str
) -> None:
    imported, durable = WRITERS[name]
    folder = tmp_path / "run"
    folder.mkdir()
    disk, done, chance = Disk.of(folder), -1, random.Random(7)  # noqa: S311
    program = PROGRAM.format(imported=imported)
    for number, op in enumerate(
        record([sys.executable, "-c", program, str(folder)], folder, tmp_path / "s", PYTHONPATH)
    ):
        disk.do(op)
        done = marks(op, done)
        for how in (*WAYS, *["any"] * 20):
            loses(disk, chance, how, tmp_path / "after", folder)
            found = number_in(tmp_path / "after" / "file.json")
            assert found <= done + 1
            if durable:
                assert found >= done, (
                    f"{name}: call {number}, {how}: version {done} was promised, {found} is there"
                )
            figures.add("power losses: states of a file that is replaced, each whole")
    assert done == 3
