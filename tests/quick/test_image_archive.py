"""`docker save` in its three layouts, as a stream. The old layout is recorded from Docker 20.10; the others are built
here after the OCI image layout and Docker's release notes of 25 and 29, because no such engine was at hand."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.image import archive

BIG = archive.SMALL_BYTES + 1000


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Store:
    """A registry's memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.named: list[str | None] = []

    def upload(self, chunks: Iterator[bytes], size: int, digest: str | None) -> str:
        data = b"".join(chunks)
        assert len(data) == size
        self.named.append(digest)
        self.blobs[_digest(data)] = data
        return _digest(data)


def _tar(entries: list[tuple[str, bytes | str]]) -> io.BytesIO:
    """Files, and links where the content is a string."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                made.addfile(info)
            else:
                info.size = len(content)
                made.addfile(info, io.BytesIO(content))
    buffer.seek(0)
    return buffer


LAYERS = (b"small layer", bytes(BIG), b"\x01" * BIG)
CONFIG = json.dumps(
    {
        "architecture": "arm64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [_digest(x) for x in LAYERS]},
        "config": {"Labels": {"a": "b"}},
    }
).encode()


def _old() -> io.BytesIO:
    names = ["c1/layer.tar", "a2/layer.tar", "b3/layer.tar"]
    manifest = [{"Config": "conf.json", "RepoTags": None, "Layers": names}]
    return _tar(
        [
            ("a2/VERSION", b"1.0"),
            ("a2/layer.tar", LAYERS[1]),
            ("b3/layer.tar", LAYERS[2]),
            ("c1/layer.tar", LAYERS[0]),
            ("conf.json", CONFIG),
            ("manifest.json", json.dumps(manifest).encode()),
        ]
    )


def _oci(layers: tuple[bytes, ...]) -> io.BytesIO:
    def place(data: bytes) -> str:
        return archive.BLOBS + _digest(data)[7:]

    manifest = [{"Config": place(CONFIG), "Layers": [place(layer) for layer in layers]}]
    blobs = sorted({place(data): data for data in (CONFIG, *layers)}.items())
    return _tar([("oci-layout", b"{}"), *blobs, ("manifest.json", json.dumps(manifest).encode())])


@pytest.mark.parametrize("made", [_old(), _oci(LAYERS)], ids=["20.10", "25 and later, classic store"])
def test_layers_come_out_as_they_are_and_in_order(made: io.BytesIO) -> None:
    store = Store()
    parsed = archive.read(made, store.upload)
    assert parsed.config == CONFIG
    assert [layer.digest for layer in parsed.layers] == [_digest(layer) for layer in LAYERS]
    assert [layer.size_bytes for layer in parsed.layers] == [len(layer) for layer in LAYERS]
    assert {layer.media_type for layer in parsed.layers} == {archive.PLAIN}


def test_compressed_layers_of_the_containerd_store_keep_their_digest_and_say_what_they_are() -> None:
    packed = tuple(gzip.compress(layer, 1, mtime=0) for layer in LAYERS)
    parsed = archive.read(_oci(packed), Store().upload)
    assert [layer.digest for layer in parsed.layers] == [_digest(layer) for layer in packed]
    assert all(layer.media_type.endswith("tar.gzip") for layer in parsed.layers)


def test_names_that_are_digests_are_told_so_that_what_is_stored_is_skipped() -> None:
    store = Store()
    archive.read(_oci(LAYERS), store.upload)
    assert all(store.named)


def test_a_repeated_layer_of_the_old_layout_is_a_link() -> None:
    manifest = [{"Config": "c.json", "Layers": ["a/layer.tar", "b/layer.tar"]}]
    made = _tar(
        [
            ("a/layer.tar", b"x"),
            ("b/layer.tar", "../a/layer.tar"),
            ("c.json", CONFIG),
            ("manifest.json", json.dumps(manifest).encode()),
        ]
    )
    parsed = archive.read(made, Store().upload)
    assert parsed.layers[0] == parsed.layers[1]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "0 images"),
        ([("manifest.json", b'[{"Config": "c", "Layers": []}, {}]')], "2 images"),
        ([("manifest.json", b'[{"Config": "c", "Layers": []}]')], "'c'"),
        ([("c", b"{}"), ("manifest.json", b'[{"Config": "c", "Layers": ["gone"]}]')], "'gone'"),
    ],
)
def test_an_archive_that_lacks_something_is_named(
    entries: list[tuple[str, bytes | str]], message: str
) -> None:
    with pytest.raises(archive.BadArchive, match=message):
        archive.read(_tar(entries), Store().upload)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(min_value=1, max_value=99))
def test_a_stream_that_is_cut_off_is_never_an_image(percent: int) -> None:
    whole = _oci((b"one", b"two")).getvalue().rstrip(b"\0")
    cut = io.BytesIO(whole[: len(whole) * percent // 100])
    with pytest.raises(archive.BadArchive):
        archive.read(cut, Store().upload)


def test_steps_hold_ever_more_layers_and_end_with_the_image() -> None:
    parsed = archive.read(_old(), Store().upload)
    steps = archive.steps(parsed, BIG)
    assert [len(layers) for _, layers in steps] == [2, 3]
    cut = json.loads(steps[0][0])
    assert cut["rootfs"]["diff_ids"] == [_digest(layer) for layer in LAYERS[:2]]
    assert (cut["architecture"], cut["os"]) == ("arm64", "linux")
    assert steps[-1] == (CONFIG, parsed.layers)
    assert len(archive.steps(parsed, 1 << 40)) == 1
    body = json.loads(archive.manifest(*steps[-1]))
    assert body["config"]["digest"] == _digest(CONFIG)
    assert [layer["digest"] for layer in body["layers"]] == [_digest(layer) for layer in LAYERS]
