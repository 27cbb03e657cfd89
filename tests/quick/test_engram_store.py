"""Pack, read, damage, resume: on a real file system, through the program's own entry."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkyard_engine.engram import crc32c, native, pack
from sparkyard_engine.engram.errors import ConfigError, OwnershipError, ReadError, Reject, StoreError
from sparkyard_engine.engram.format import PAGE_BYTES, Identity, PageSeal, check_header
from sparkyard_engine.engram.hashing import Layout
from sparkyard_engine.engram.manifest import decode, encode, load
from sparkyard_engine.engram.ownership import Ownership
from sparkyard_engine.engram.reader import Backend, Reader, open_layer_file
from sparkyard_engine.engram.source import open_checkpoint
from tests.engram_checkpoint import write_checkpoint, write_sparse_checkpoint
from tests.engram_kill import kill_and_resume

VOCAB = 61
BACKENDS = (
    (Backend.PYTHON, Backend.IO_URING, Backend.POOL) if native.library() is not None else (Backend.PYTHON,)
)
LAYOUT = Layout.build(layer_ids=(1, 14), max_ngram_size=4, heads=2, vocab_size=VOCAB)


def run_pack(
    checkpoint: Path, output: Path, *more: str, tp: int = 3, rank: int = 1, rule: str = "balanced"
) -> int:
    base = ["--checkpoint", str(checkpoint), "--revision", "r1", "--tp", str(tp), "--rank", str(rank)]
    return pack.main([*base, "--ownership", rule, "--output", str(output), *more])


def read_all(store: Path, layer: int, tables) -> None:
    for backend in BACKENDS:
        read_with(store, layer, tables, backend)


def read_with(store: Path, layer: int, tables, backend: Backend) -> None:
    with Reader(store, layer, backend=backend) as reader:
        ids = np.concatenate([np.arange(0), *(np.arange(a, b) for a, b in reader.slice.ranges)])
        weight, scale = np.empty((len(ids), 256), np.uint8), np.empty((len(ids), 8), np.uint8)
        reader.read_rows(ids, weight, scale)
        assert (weight == tables[layer][0][ids]).all()
        assert (scale == tables[layer][1][ids]).all()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    base = tmp_path_factory.mktemp("engram")
    tables = write_checkpoint(base / "checkpoint", LAYOUT, VOCAB)
    assert run_pack(base / "checkpoint", base / "store") == 0
    return base / "checkpoint", base / "store", tables


@pytest.fixture
def store(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "store")
    return tmp_path / "store"


def test_crc32c_is_castagnoli() -> None:
    assert crc32c.of_bytes(b"123456789") == 0xE3069283
    assert crc32c.of_bytes(bytes(32)) == 0x8A9136AA
    assert crc32c.of_bytes(b"") == 0
    assert crc32c.extend(0xFFFFFFFF, b"123456789") ^ 0xFFFFFFFF == 0xE3069283


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_and_foreign_rows_and_empty_batches(made, backend) -> None:
    _, store, tables = made
    with Reader(store, 14, backend=backend) as reader:
        assert reader.backend == backend
        ids = np.random.default_rng(3).integers(0, LAYOUT.table_rows[1], 400)
        weight, scale = np.full((400, 256), 9, np.uint8), np.full((400, 8), 9, np.uint8)
        owned = reader.read_owned(ids, weight, scale)
        assert 50 < owned.sum() < 350
        assert (weight[owned] == tables[14][0][ids[owned]]).all()
        assert (scale[owned] == tables[14][1][ids[owned]]).all()
        assert (weight[~owned] == 0).all()
        assert (scale[~owned] == 127).all()
        reader.read_rows(ids[:0], weight[:0], scale[:0])
        counters = reader.counters
        assert (counters.batches, counters.rows_requested) == (2, owned.sum())
        assert counters.rows_unique == len(np.unique(ids[owned])) < owned.sum()
        assert counters.bytes_read == counters.pages_read * PAGE_BYTES > 0
        assert sum(counters.latency) == 2


@given(st.lists(st.integers(0, LAYOUT.table_rows[0] - 1), max_size=60), st.sampled_from([0, 2000, 1 << 20]))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_all_readers_give_each_distinct_row_once(made, ids, cache_bytes) -> None:
    _, store, tables = made
    batch = np.asarray(ids, dtype=np.int64)
    seen = []
    for backend in BACKENDS:
        with Reader(store, 1, backend=backend, cache_bytes=cache_bytes) as reader:
            mine = reader.slice.owned(batch)
            for _ in range(2):  # the second time through the cache, where there is one
                weight, scale = np.full((len(ids), 256), 7, np.uint8), np.full((len(ids), 8), 7, np.uint8)
                index = np.full(len(ids), 99, np.int32)
                count = reader.read_distinct(batch, weight, scale, index)
                assert count == len(np.unique(batch[mine]))
                assert (index[~mine] == -1).all()
                assert (weight[index[mine]] == tables[1][0][batch[mine]]).all()
                assert (scale[index[mine]] == tables[1][1][batch[mine]]).all()
            counters = reader.counters
            assert counters.cache_hits <= count
            assert counters.cache_hits == (
                count if cache_bytes == 1 << 20 and backend != "python" else 0
            ) or (cache_bytes == 2000)
            seen.append((weight[:count].tobytes(), scale[:count].tobytes(), index.tobytes()))
    assert len(set(seen)) == 1


def test_large_batches_take_the_other_sort(made) -> None:
    _, store, tables = made
    ids = np.random.default_rng(5).integers(0, LAYOUT.table_rows[1], 9000)
    for backend in BACKENDS:
        weight, scale = np.empty((9000, 256), np.uint8), np.empty((9000, 8), np.uint8)
        with Reader(store, 14, backend=backend) as reader:
            mine = reader.read_owned(ids, weight, scale)
        assert (weight[mine] == tables[14][0][ids[mine]]).all()
        assert (scale[mine] == tables[14][1][ids[mine]]).all()
        assert not weight[~mine].any()


def test_outputs_that_do_not_fit_are_refused(made) -> None:
    with Reader(made[1], 1) as reader:
        ids = np.full(2, reader.slice.ranges[0][0])
        for weight, scale in (
            (np.empty((1, 256), np.uint8), np.empty((2, 8), np.uint8)),
            (np.empty((2, 256), np.int8), np.empty((2, 8), np.uint8)),
            (np.empty((2, 512), np.uint8)[:, ::2], np.empty((2, 8), np.uint8)),
        ):
            with pytest.raises(ConfigError, match="outputs must be"):
                reader.read_rows(ids, weight, scale)


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


def test_every_flipped_byte_of_header_and_page_and_checksum_is_noticed(store) -> None:
    path = store / "layer-1.rows"
    good = path.read_bytes()
    header = load(store).layer(1).header
    for offset in range(PAGE_BYTES):
        bad = bytearray(good[:PAGE_BYTES])
        bad[offset] ^= 1 << (offset % 8)
        with pytest.raises(StoreError) as refused:
            check_header(bytes(bad), header, "file")
        assert refused.value.reason in (Reject.HEADER_CORRUPT, Reject.NOT_A_STORE)
    pages = np.tile(np.frombuffer(good[-PAGE_BYTES:], dtype=np.uint8), (PAGE_BYTES, 1))
    pages[np.arange(PAGE_BYTES), np.arange(PAGE_BYTES)] ^= (1 << np.arange(PAGE_BYTES) % 8).astype(np.uint8)
    seal = PageSeal(bytes.fromhex(header.identity.store_id), 1)
    assert not seal.valid(pages, np.full(len(pages), header.pages)).any()


def test_every_flipped_byte_of_the_manifest_is_noticed(store) -> None:
    good = (store / "manifest.json").read_bytes()
    assert encode(decode(good, "m")) == good
    for offset in range(len(good)):
        for mask in (1, 32):
            bad = bytearray(good)
            bad[offset] ^= mask
            with pytest.raises(StoreError) as refused:
                decode(bytes(bad), "m")
            assert refused.value.reason in (Reject.MANIFEST_CORRUPT, Reject.NOT_A_STORE, Reject.OTHER_VERSION)


def test_truncation_at_every_sector(store) -> None:
    path = store / "layer-1.rows"
    size = path.stat().st_size
    for length in range(size - 512, -1, -512):
        with path.open("r+b") as file:
            file.truncate(length)
        with pytest.raises(StoreError) as refused:
            open_layer_file(store, 1, None)
        assert refused.value.reason in (Reject.TRUNCATED, Reject.NOT_A_STORE)
    path.unlink()
    with pytest.raises(StoreError, match="missing"):
        Reader(store, 1)


def damage(store: Path, offset: int, data: bytes) -> None:
    with (store / "layer-1.rows").open("r+b") as file:
        file.seek(offset)
        file.write(data)


def page_of(store: Path, layer: int, number: int) -> bytes:
    return (store / f"layer-{layer}.rows").read_bytes()[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]


def torn(store: Path, other: Path) -> bytes:
    return page_of(store, 1, 2)[:2048] + page_of(store, 1, 3)[2048:]


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        (Reject.HOLE, lambda *_: bytes(PAGE_BYTES)),
        (Reject.PAGE_CORRUPT, torn),
        (Reject.MISPLACED_PAGE, lambda store, _: page_of(store, 1, 3)),
        (Reject.MISPLACED_PAGE, lambda store, _: page_of(store, 14, 2)),
        (Reject.FOREIGN_PAGE, lambda _, other: page_of(other, 1, 2)),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bad_page_is_named_with_its_row_and_never_served(
    made, store, tmp_path, reason, what, backend
) -> None:
    assert run_pack(made[0], tmp_path / "other", tp=4) == 0
    damage(store, 2 * PAGE_BYTES, what(store, tmp_path / "other"))
    with Reader(store, 1, backend=backend) as reader:
        first = reader.slice.ranges[0][0]
        weight, scale = np.empty((2, 256), np.uint8), np.empty((2, 8), np.uint8)
        reader.read_rows(np.asarray([first, first + 1]), weight, scale)
        with pytest.raises(ReadError) as refused:
            reader.read_rows(np.asarray([first, first + 16]), weight, scale)
        assert (refused.value.reason, refused.value.row, refused.value.page) == (reason, first + 16, 2)
        assert reader.counters.errors == 1
        reader.read_rows(np.asarray([first, first + 1]), weight, scale)  # the others are served as before
        with pytest.raises(OwnershipError, match="not in this slice"):
            reader.read_rows(np.asarray([first, first - 1]), weight, scale)
        with (store / "layer-1.rows").open("r+b") as file:
            file.truncate(2 * PAGE_BYTES)
        with pytest.raises(ReadError) as refused:
            reader.read_rows(np.asarray([first, first + 16]), weight, scale)
        assert refused.value.reason == Reject.TRUNCATED


def test_verify_refuses_a_damaged_store(made, store) -> None:
    damage(store, 2 * PAGE_BYTES + 5, b"x")
    assert run_pack(made[0], store, "--verify") == 1


def test_a_store_of_something_else_is_refused_by_name(made) -> None:
    _, store, _ = made
    right = load(store).identity
    base = (right.revision, right.index_sha256, right.tp, right.rank, right.ownership)
    for place, value, reason in (
        (0, "r2", Reject.OTHER_REVISION),
        (1, "0" * 64, Reject.OTHER_MODEL),
        (2, 4, Reject.OTHER_TP),
        (3, 2, Reject.OTHER_RANK),
        (4, Ownership.ROWS, Reject.OTHER_OWNERSHIP),
    ):
        fields = list(base)
        fields[place] = value
        with pytest.raises(StoreError) as refused:
            Reader(store, 1, expected=Identity(*fields))
        assert refused.value.reason == reason
    with pytest.raises(StoreError, match="layer 2 is not in this store"):
        Reader(store, 2, expected=right)


def test_a_layer_file_in_the_place_of_another_is_refused(store) -> None:
    (store / "layer-14.rows").replace(store / "layer-1.rows")
    with pytest.raises(StoreError) as refused:
        Reader(store, 1)
    assert refused.value.reason == Reject.OTHER_LAYER


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


DENY_IO_URING = """
import ctypes, struct, sys
LOAD_NUMBER, JUMP_GE, JUMP_GT, RETURN = 0x20, 0x35, 0x25, 0x06
SETUP, REGISTER, EPERM, ALLOW = 425, 427, 0x00050001, 0x7FFF0000
lines = ((LOAD_NUMBER, 0, 0, 0), (JUMP_GE, 0, 2, SETUP), (JUMP_GT, 1, 0, REGISTER))
lines += ((RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW))
program = b"".join(struct.pack("HBBI", *line) for line in lines)
code = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0, ctypes.get_errno()
import numpy as np
from sparkyard_engine.engram.errors import ConfigError
from sparkyard_engine.engram.reader import Reader
reader = Reader(sys.argv[1], 1)
ids = np.arange(*reader.slice.ranges[0])
weight, scale = np.empty((len(ids), 256), np.uint8), np.empty((len(ids), 8), np.uint8)
reader.read_rows(ids, weight, scale)
try:
    Reader(sys.argv[1], 1, backend="io_uring")
except ConfigError as refused:
    print(refused)
print(reader.backend, "|", reader.backend_note, "|", int(weight.sum()))
"""


@pytest.mark.skipif(native.library() is None, reason="needs the native reader")
def test_under_a_profile_that_denies_io_uring_the_pool_reads(made) -> None:
    _, store, tables = made
    engine = Path(pack.__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", DENY_IO_URING, str(store)],
        capture_output=True,
        text=True,
        check=True,
        cwd=engine,
    )
    refused, used = run.stdout.splitlines()
    assert refused == "backend io_uring is not available here: io_uring: Operation not permitted"
    with Reader(store, 1) as reader:
        start, end = reader.slice.ranges[0]
    assert used == f"pool | pool; io_uring: Operation not permitted | {int(tables[1][0][start:end].sum())}"


def test_without_a_compiler_the_twin_reads_and_says_why(made, tmp_path) -> None:
    script = "import sys; from sparkyard_engine.engram.reader import Reader; print(Reader(sys.argv[1], 1).backend_note)"
    environment = {"PATH": str(tmp_path), "SPARKYARD_NATIVE_CACHE": str(tmp_path), "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", script, str(made[1])],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(pack.__file__).parents[2],
    )
    assert run.stdout.startswith("python; native: no C++ compiler (c++, g++, clang++)")


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
