"""A checkpoint's tree: what is wrong with it is named, and digests are compared where one is known."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from node_agent import tree
from node_agent.wire import Refused

NAMES = ("a.safetensors", "b.safetensors")
SIZE = 3 << 20


def _write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / tree.INDEX).write_text(json.dumps({"weight_map": {"t1": NAMES[0], "t2": NAMES[1]}}))
    for name in NAMES:
        (folder / name).write_bytes(os.urandom(SIZE))
    return folder


def _snapshot(folder: Path) -> Path:
    """As `huggingface_hub` lays its cache out: links into blobs that are named by their digest."""
    plain, root = _write(folder / "plain"), folder / "models--x--y"
    (root / "blobs").mkdir(parents=True)
    snapshot = root / "snapshots" / "rev"
    snapshot.mkdir(parents=True)
    for name in (tree.INDEX, *NAMES):
        data = (plain / name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        (root / "blobs" / digest).write_bytes(data)
        (snapshot / name).symlink_to(Path("../../blobs") / digest)
    return snapshot


def test_a_whole_tree_has_no_fault(tmp_path: Path) -> None:
    assert tree.faults(_write(tmp_path / "c")) == []
    snapshot = _snapshot(tmp_path)
    assert tree.faults(snapshot) == []
    done = tree.verify(snapshot, lambda _: None)
    assert (done["wrong"], done["unknown"], done["faults"]) == ([], [], [])
    assert set(done["files"]) == {tree.INDEX, *NAMES}


def test_each_fault_is_named(tmp_path: Path) -> None:
    folder = _write(tmp_path / "c")
    (folder / NAMES[0]).unlink()
    assert tree.faults(folder) == ["a.safetensors: missing; fetch it"]
    (folder / NAMES[0]).symlink_to("/nowhere/blob")
    assert "dangling" in tree.faults(folder)[0]
    (folder / NAMES[0]).unlink()
    (folder / NAMES[0]).write_bytes(b"")
    assert "empty" in tree.faults(folder)[0]
    (folder / NAMES[0]).write_bytes(bytes(SIZE))
    assert "zero-filled" in tree.faults(folder)[0]
    (folder / NAMES[0]).write_bytes(b"header!!" + bytes(SIZE))
    assert "samples are zero" in tree.faults(folder)[0]
    with (folder / NAMES[0]).open("wb") as file:
        file.write(os.urandom(1000))
        file.truncate(SIZE)
    assert "sparse" in tree.faults(folder)[0]


def test_partial_downloads_and_mixed_revisions_are_named(tmp_path: Path) -> None:
    folder = _write(tmp_path / "c")
    place = folder / tree.RECORDS
    place.mkdir(parents=True)
    for name, revision in zip(NAMES, ("1" * 40, "2" * 40), strict=True):
        (place / f"{name}.metadata").write_text(f"{revision}\n{'e' * 64}\n0.0\n")
    (place / "xyz.incomplete").write_bytes(b"half")
    words = "\n".join(tree.faults(folder))
    assert "partial" in words
    assert "mixed revisions" in words
    assert "111111111111" in words
    snapshot = _snapshot(tmp_path)
    (snapshot.parent.parent / "blobs" / "abc.incomplete").write_bytes(b"half")
    assert "partial" in tree.faults(snapshot)[0]


def test_a_changed_byte_is_found_where_a_digest_is_known(tmp_path: Path) -> None:
    snapshot = _snapshot(tmp_path)
    with (snapshot / NAMES[1]).resolve().open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"\xff\x00\xff")
    done = tree.verify(snapshot, lambda _: None)
    assert [word.partition(":")[0] for word in done["wrong"]] == ["b.safetensors"]
    folder = _write(tmp_path / "c")
    assert tree.verify(folder, lambda _: None)["unknown"] == [tree.INDEX, *NAMES]
    (folder / tree.DIGESTS).write_text(json.dumps({"files": {NAMES[0]: "0" * 64}}))
    assert tree.verify(folder, lambda _: None)["wrong"][0].startswith("a.safetensors: digest")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}', "\x00"]
)
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / tree.INDEX).write_text(text)
    assert tree.faults(tmp_path)
    with pytest.raises(Refused, match="index"):
        tree.verify(tmp_path, lambda _: None)
