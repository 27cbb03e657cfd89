"""`images.lock`: the digest of each base image, recorded when it is first pulled. A later pull must give the same.

A tag such as `cuda:13.0.2-cudnn-devel-ubuntu24.04` is moved by its publisher when it likes. The lock lies on the node
that builds, in sparkyard's folder; a base that the profile names by digest needs no entry.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node_agent.files import read_json, write_json
from node_agent.image.identity import Image
from node_agent.wire import Refused

FILE = "images.lock"
SCHEMA = "sparkyard/images-lock/v1"


def pinned(reference: str) -> bool:
    """Whether the reference names its content by digest."""
    return "@sha256:" in reference


def repository(reference: str) -> str:
    """The reference without tag and digest; a port of a registry is no tag."""
    name = reference.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.split(':', 1)[0]}"


def digest_of(reference: str, image: Image) -> str:
    """The digest that the registry gave for this repository; of an image that was made here, its own id."""
    wanted = repository(reference)
    for known in image.digests:
        name, _, digest = known.partition("@")
        if name == wanted or name.endswith(f"/{wanted}"):
            return digest
    return image.id


def read(root: Path) -> dict[str, dict[str, Any]]:
    """Entries by reference. Refused when the file is there and is no lock: it must not be forgotten silently."""
    path = root / FILE
    if not path.exists():
        return {}
    value = read_json(path)
    images = value.get("images") if value is not None and value.get("schema") == SCHEMA else None
    sound = isinstance(images, dict) and all(
        isinstance(entry, dict) and isinstance(entry.get("digest"), str) for entry in images.values()
    )
    if not isinstance(images, dict) or not sound:
        raise Refused(f"{path}: not a lock of images ({SCHEMA}); remove it to record the digests anew")
    return images


def hold(root: Path, reference: str, image: Image) -> str:
    """The digest of the base: recorded now, or equal to the one recorded before. Refused when it has drifted."""
    found = digest_of(reference, image)
    if pinned(reference):
        wanted = reference.split("@", 1)[1]
        if found not in (wanted, image.id):
            raise Refused(
                f"base image {reference}: the engine has {found} under this name; remove it and run again"
            )
        return wanted
    known = read(root)
    if reference not in known:
        _write(root, {**known, reference: {"digest": found, "recorded_unix_s": time.time()}})
        return found
    if known[reference]["digest"] != found:
        raise Refused(
            f"base image {reference} has drifted: now {found}, {root / FILE} has {known[reference]['digest']}. "
            f"Name one of them in the profile (engine.image: {repository(reference)}@{found}), or remove the entry "
            "to accept the new one"
        )
    return found


def _write(root: Path, images: Mapping[str, Any]) -> None:
    write_json(root / FILE, {"schema": SCHEMA, "images": dict(sorted(images.items()))})
