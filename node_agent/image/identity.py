"""Which image this is, independent of the engine's store and release. Pure.

The `Id` that an engine shows is the digest of the config with the classic store and the digest of a manifest or an
index with the containerd store, so it is never compared between nodes. What is the same in both: the labels, the
platform, and the digests of the uncompressed layers. The config digest is compared where both nodes know it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

CONTENT_LABEL = "sparkyard.content"
"""Digest of all inputs of the build, written into the image by the build."""

KERNELS_LABEL = "sparkyard.kernels"
"""Key of everything that is compiled or tuned at run time: nodes keep that in a folder of this name."""


@dataclass(frozen=True)
class Image:
    """One image of one engine."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    content: str
    platform: str
    layers: tuple[str, ...]
    """Digests of the uncompressed layers, the lowest first, as `sha256:…`."""
    config: str | None
    """Digest of the config; None where the engine does not tell."""
    size_bytes: int
    kernels: str = ""

    @property
    def rootfs(self) -> str:
        """SHA-256 over the layer digests: equal on all nodes for equal content."""
        return hashlib.sha256("\n".join(self.layers).encode()).hexdigest()


def parse(document: dict[str, Any]) -> Image:
    """One entry of `docker image inspect`. ValueError when it does not look like one."""
    try:
        config = document.get("Config") or {}
        labels = config.get("Labels") or {}
        layers = tuple(str(layer) for layer in (document.get("RootFS") or {}).get("Layers") or ())
        parts = [document["Os"], document["Architecture"], document.get("Variant") or ""]
        return Image(
            id=str(document["Id"]),
            tags=tuple(document.get("RepoTags") or ()),
            digests=tuple(document.get("RepoDigests") or ()),
            content=str(labels.get(CONTENT_LABEL, "")),
            platform="/".join(part for part in parts if part),
            layers=layers,
            config=_config_digest(document),
            size_bytes=int(document.get("Size") or 0),
            kernels=str(labels.get(KERNELS_LABEL, "")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an image description: {type(error).__name__}: {error}") from None


def _config_digest(document: dict[str, Any]) -> str | None:
    """With the containerd store, `Descriptor` names a manifest or an index and equals `Id`: the config is unknown."""
    descriptor = document.get("Descriptor") or {}
    if descriptor.get("digest") == document["Id"] and "manifest" in str(descriptor.get("mediaType")):
        return None
    if descriptor.get("digest") == document["Id"] and "index" in str(descriptor.get("mediaType")):
        return None
    return str(document["Id"])


def parse_all(text: str) -> list[Image]:
    """Everything that `docker image inspect ID…` printed. ValueError when it is something else."""
    value = json.loads(text or "[]")
    if not isinstance(value, list):
        raise ValueError("docker image inspect prints a list")
    return [parse(entry) for entry in value]


def common_prefix(wanted: tuple[str, ...], images: list[Image]) -> int:
    """How many of the lowest layers of ``wanted`` this engine has already: a layer counts with all below it."""
    best = 0
    for image in images:
        same = 0
        for ours, theirs in zip(wanted, image.layers):  # noqa: B905 - the shorter one ends it
            if ours != theirs:
                break
            same += 1
        best = max(best, same)
    return best


def uses_containerd_store(info: dict[str, Any]) -> bool:
    """Whether `docker info` names the containerd image store (the default of Docker 29 on a new installation)."""
    return any(
        pair[:2] == ["driver-type", "io.containerd.snapshotter.v1"]
        for pair in info.get("DriverStatus") or []
        if isinstance(pair, list)
    )
