"""What a damaged or foreign store is refused for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from sparkyard_engine.engram import crc32c
from sparkyard_engine.engram.errors import OwnershipError, ReadError, Reject, StoreError
from sparkyard_engine.engram.format import PAGE_BYTES, Identity, check_header
from sparkyard_engine.engram.manifest import decode, encode, load
from sparkyard_engine.engram.ownership import Ownership
from sparkyard_engine.engram.page import PageSeal
from sparkyard_engine.engram.reader import Reader, open_layer_file
from tests.engram_stores import BACKENDS, damage, make_store, page_of, run_pack


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("engram"))


@pytest.fixture
def store(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "store")
    return tmp_path / "store"


def test_crc32c_is_castagnoli() -> None:
    assert crc32c.of_bytes(b"123456789") == 0xE3069283
    assert crc32c.of_bytes(bytes(32)) == 0x8A9136AA
    assert crc32c.of_bytes(b"") == 0
    assert crc32c.extend(0xFFFFFFFF, b"123456789") ^ 0xFFFFFFFF == 0xE3069283


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
