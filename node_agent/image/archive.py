"""Reads `docker save` as it streams by, of either store and of old and new engines.

Three layouts are known. Engines before 25 write `<id>/layer.tar`, `<config>.json` and `manifest.json`. Later ones
write an OCI layout, `blobs/sha256/<digest>`, beside the same `manifest.json`; its layers are plain tars with the
classic store, and compressed as they were pulled with the containerd store. `manifest.json` comes last.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

CHUNK_BYTES = 1 << 20
SMALL_BYTES = 4 << 20
"""Members up to this size are kept in memory: configs, manifests and small layers."""
BLOBS = "blobs/sha256/"
TYPES = {
    b"\x1f\x8b": "application/vnd.docker.image.rootfs.diff.tar.gzip",
    b"\x28\xb5": "application/vnd.oci.image.layer.v1.tar+zstd",
}
PLAIN = "application/vnd.docker.image.rootfs.diff.tar"
CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

Upload = Callable[[Iterator[bytes], int, str | None], str]
"""(chunks, size, digest if the archive names it) -> digest `sha256:…` of what was stored."""


class BadArchive(Exception):
    """The stream is not an image archive, or it is cut off."""


class Readable(Protocol):
    """All that `tarfile` asks of a stream."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes; empty at the end."""


@dataclass(frozen=True)
class Blob:
    """A stored layer or config."""

    digest: str
    size_bytes: int
    media_type: str

    def descriptor(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {"mediaType": self.media_type, "size": self.size_bytes, "digest": self.digest}


@dataclass(frozen=True)
class Parsed:
    """One image: its config's bytes and its layers, the lowest first."""

    config: bytes
    layers: tuple[Blob, ...]


@dataclass
class _Seen:
    small: dict[str, bytes] = field(default_factory=dict)
    large: dict[str, Blob] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def read(stream: Readable, upload: Upload) -> Parsed:
    """Store every layer of the one image in ``stream`` through ``upload`` as it passes. BadArchive when it is none."""
    seen = _Seen()
    try:
        # typeshed wants a whole file object; mode `r|` asks for `read` only
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                _member(archive, member, seen, upload)
    except tarfile.TarError as error:
        raise BadArchive(f"the image archive is cut off or damaged: {error}") from None
    entries = json.loads(seen.small.get("manifest.json", b"[]"))
    if len(entries) != 1:
        raise BadArchive(f"the archive holds {len(entries)} images, expected one; name one platform")
    try:
        config = seen.small[entries[0]["Config"]]
        layers = tuple(_layer(name, seen, upload) for name in entries[0]["Layers"])
    except KeyError as error:
        raise BadArchive(f"the archive names {error.args[0]!r} and does not hold it") from None
    return Parsed(config, layers)


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, seen: _Seen, upload: Upload) -> None:
    if member.issym():
        folder = member.name.rpartition("/")[0]
        seen.links[member.name] = _join(folder, member.linkname)
        return
    file = archive.extractfile(member) if member.isfile() else None
    if file is None:
        return
    if member.size <= SMALL_BYTES:
        seen.small[member.name] = file.read()
        return
    named = f"sha256:{member.name[len(BLOBS) :]}" if member.name.startswith(BLOBS) else None
    head = file.read(CHUNK_BYTES)

    def chunks() -> Iterator[bytes]:
        yield head
        while data := file.read(CHUNK_BYTES):
            yield data

    digest = upload(chunks(), member.size, named)
    seen.large[member.name] = Blob(digest, member.size, TYPES.get(head[:2], PLAIN))


def _layer(name: str, seen: _Seen, upload: Upload) -> Blob:
    name = seen.links.get(name, name)
    if name not in seen.large:
        data = seen.small[name]
        digest = upload(iter([data]), len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
        seen.large[name] = Blob(digest, len(data), TYPES.get(data[:2], PLAIN))
    return seen.large[name]


def _join(folder: str, link: str) -> str:
    """Where a relative link inside the archive points."""
    parts = folder.split("/") if folder else []
    for part in link.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)


def steps(parsed: Parsed, step_bytes: int) -> list[tuple[bytes, tuple[Blob, ...]]]:
    """Configs and layers of images that hold ever more of the lowest layers; the last one is the image itself.

    The classic store forgets the layers of a pull that was interrupted. A node that pulls these in turn loses at
    most one step of about ``step_bytes``.
    """
    result: list[tuple[bytes, tuple[Blob, ...]]] = []
    size = 0
    config = json.loads(parsed.config)
    for count, layer in enumerate(parsed.layers[:-1], start=1):
        size += layer.size_bytes
        if size >= step_bytes:
            result.append((_cut(config, count), parsed.layers[:count]))
            size = 0
    result.append((parsed.config, parsed.layers))
    return result


def _cut(config: dict[str, Any], count: int) -> bytes:
    """A config for the lowest ``count`` layers; it is never run."""
    platform = {key: config[key] for key in ("architecture", "os", "variant") if key in config}
    rootfs = {"type": "layers", "diff_ids": config["rootfs"]["diff_ids"][:count]}
    return json.dumps({**platform, "config": {}, "rootfs": rootfs}, sort_keys=True).encode()


def manifest(config: bytes, layers: tuple[Blob, ...]) -> bytes:
    """The manifest of an image, schema 2."""
    blob = Blob(f"sha256:{hashlib.sha256(config).hexdigest()}", len(config), CONFIG)
    body = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob.descriptor(),
        "layers": [layer.descriptor() for layer in layers],
    }
    return json.dumps(body, indent=1).encode()
