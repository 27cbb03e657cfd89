"""The three readers: the same rows, the same refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkyard_engine.engram import native, pack
from sparkyard_engine.engram.errors import ConfigError
from sparkyard_engine.engram.format import PAGE_BYTES
from sparkyard_engine.engram.reader import Reader
from tests.engram_stores import BACKENDS, LAYOUT, make_store


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("engram"))


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
