"""Pack through the program's own entry, on a real file system: round trips, resuming, verification, bad sources."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkyard_engine.engram import pack
from sparkyard_engine.engram.format import PAGE_BYTES
from sparkyard_engine.engram.hashing import Layout
from sparkyard_engine.engram.manifest import load
from sparkyard_engine.engram.ownership import Ownership
from sparkyard_engine.engram.source import open_checkpoint
from tests.engram_checkpoint import write_checkpoint, write_sparse_checkpoint
from tests.engram_kill import kill_and_resume
from tests.engram_stores import damage, make_store, read_all, run_pack


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("engram"))


@pytest.fixture
def store(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "store")
    return tmp_path / "store"


@given(
    st.integers(1, 3),
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(2, 300),
    st.integers(1, 3),
    st.sampled_from(Ownership),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, 8, 512]),
)
@settings(derandomize=True, deadline=None, max_examples=10)
def test_round_trip_of_any_layout(
    tmp_path_factory, layers, order, heads, vocab, tp, rule, apart, first, pad_to
) -> None:
    base = tmp_path_factory.mktemp("any")
    layout = Layout.build(layer_ids=range(layers), max_ngram_size=order, heads=heads, vocab_size=vocab)
    tables = write_checkpoint(base / "c", layout, vocab, apart=apart, scale_first=first, pad_to=pad_to)
    for rank in range(tp):
        assert run_pack(base / "c", base / f"s{rank}", tp=tp, rank=rank, rule=str(rule)) == 0
        for layer in layout.layer_ids:
            read_all(base / f"s{rank}", layer, tables)
    assert run_pack(base / "c", base / "s0", "--verify", tp=tp, rank=0, rule=str(rule)) == 0
    shutil.rmtree(base)


def test_a_second_pack_touches_nothing(made) -> None:
    checkpoint, store, _ = made
    before = {path.name: path.stat().st_mtime_ns for path in store.iterdir() if path.suffix != ".lock"}
    assert run_pack(checkpoint, store) == 0
    assert {
        path.name: path.stat().st_mtime_ns for path in store.iterdir() if path.suffix != ".lock"
    } == before


def test_a_good_store_of_another_rank_is_not_overwritten(made, capsys) -> None:
    checkpoint, store, tables = made
    assert run_pack(checkpoint, store, rank=2) == 1
    assert "rank 1, expected 2" in capsys.readouterr().err
    read_all(store, 1, tables)


def test_verify_refuses_a_damaged_store(made, store) -> None:
    damage(store, 2 * PAGE_BYTES + 5, b"x")
    assert run_pack(made[0], store, "--verify") == 1


def test_resume_keeps_sound_extents_and_ends_with_the_same_bytes(made, store) -> None:
    checkpoint, whole, _ = made
    (store / "manifest.json").unlink()
    (store / "layer-14.rows").replace(store / "layer-14.rows.partial")
    with (store / "layer-14.rows.partial").open("r+b") as file:
        file.seek(PAGE_BYTES * 3 + 77)
        file.write(b"torn")
    assert run_pack(checkpoint, store) == 0
    for name in ("manifest.json", "layer-1.rows", "layer-14.rows"):
        assert (store / name).read_bytes() == (whole / name).read_bytes()


def test_a_killed_pack_goes_on_and_ends_with_the_same_bytes(made, tmp_path) -> None:
    assert kill_and_resume(made[0], tmp_path, 12, seed=1) >= 3


def test_verify_finds_a_sound_row_that_is_not_the_source(made, tmp_path, capsys) -> None:
    shutil.copytree(made[0], tmp_path / "checkpoint")
    shard = tmp_path / "checkpoint" / "model-00000-0.safetensors"
    with shard.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + length + 256 * load(made[1]).layer(1).header.ranges[0][0])
        file.write(b"another checkpoint")
    assert run_pack(tmp_path / "checkpoint", made[1], "--verify") == 1
    assert "differs from model-00000-0.safetensors" in capsys.readouterr().err
    assert run_pack(tmp_path / "checkpoint", made[1], "--verify", "--sample", "100000") == 1
    assert run_pack(made[0], made[1], "--verify", "--sample", "100000") == 0


def test_bad_sources_and_arguments_end_in_words(made, tmp_path, capsys) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(made[0], checkpoint)
    shard = checkpoint / "model-00000-0.safetensors"
    good = shard.read_bytes()
    for data, words in (
        (good[:-1], "the download is incomplete"),
        (good[:4], "no safetensors file"),
        (b"\xff" * 8 + good[8:], "truncated or not a safetensors file"),
        (good[:8] + b"x" + good[9:], "not JSON"),
        (good.replace(b"F8_E4M3", b"F8_E5M2", 1), "expected F8_E4M3"),
    ):
        shard.write_bytes(data)
        assert run_pack(checkpoint, tmp_path / "s") == 1
        assert words in capsys.readouterr().err
    shard.unlink()
    assert run_pack(checkpoint, tmp_path / "s") == 1
    assert "fetch it" in capsys.readouterr().err
    assert run_pack(tmp_path / "nowhere", tmp_path / "s") == 1
    assert run_pack(made[0], tmp_path / "s", tp=2, rank=2) == 2
    assert run_pack(made[0], tmp_path / "s", "--revision", "x" * 65) == 2
    with pytest.raises(SystemExit) as usage:
        run_pack(made[0], tmp_path / "s", "--sample", "3")
    assert usage.value.code == 2


# A small process in between: its children's peak is that of the one command, whatever this worker ran before.
MEASURED = (
    "import resource, subprocess, sys; sys.stdout.write(subprocess.run(sys.argv[1:], capture_output=True, text=True, "
    "check=True).stdout); used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    "print('measured', used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)"
)
PLAN_CPU_S = 2.0
PLAN_RSS_BYTES = 200e6


def test_a_sparse_full_size_checkpoint_is_planned_at_once(tmp_path) -> None:
    write_sparse_checkpoint(tmp_path / "checkpoint")
    for tp, words in ((3, "62.94 GiB of rows, 65.11 GiB packed"), (4, "47.21 GiB of rows, 48.83 GiB packed")):
        command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "sparkyard_engine.engram.pack"]
        command += [
            "--checkpoint",
            str(tmp_path / "checkpoint"),
            "--revision",
            "r",
            "--tp",
            str(tp),
            "--rank",
            "0",
        ]
        command += ["--output", str(tmp_path / "s"), "--plan"]
        run = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(pack.__file__).parents[2]
        )
        assert words in run.stdout
        _, cpu_s, peak_bytes = run.stdout.splitlines()[-1].split()
        assert float(cpu_s) < PLAN_CPU_S  # processor time, which a busy machine does not change
        assert float(peak_bytes) < PLAN_RSS_BYTES
    assert not (tmp_path / "s").exists()
    assert open_checkpoint(tmp_path / "checkpoint").layout.table_rows == (384_006_168, 384_016_682)


def test_space_that_is_short_is_said_with_the_amount(tmp_path, capsys) -> None:
    write_sparse_checkpoint(tmp_path / "checkpoint")
    if shutil.disk_usage(tmp_path).free > 190 << 30:
        pytest.skip("this disk would hold the whole table")
    assert (
        run_pack(
            tmp_path / "checkpoint", tmp_path / "s", "--status", str(tmp_path / "job.json"), tp=1, rank=0
        )
        == 1
    )
    assert "bytes) short" in capsys.readouterr().err
    assert json.loads((tmp_path / "job.json").read_text())["state"] == "failed"
    assert not list((tmp_path / "s").glob("layer-*"))
