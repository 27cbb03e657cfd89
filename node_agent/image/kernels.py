"""What is compiled and tuned at run time: its key, the node's own folder for it, and what lies there.

FlashInfer's kernels are compiled in the image (`sparkyard_engine.prewarm`). What needs the GPU to be made (Triton,
TileLang, SGLang's own kernels, FlashInfer's tuning) is kept on each node between boots, in `ROOT/cache/KEY`; the key is
a label of the image, so another image never meets foreign leftovers. Each node has its own: on a share the writers
corrupt each other.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

RECIPE = ("Dockerfile", "requirements-image.lock", "sparkyard_engine/prewarm.py")
"""Files of the engine package that decide what is compiled, with which versions and for which GPU."""
SGLANG = ".cache/sglang"
"""Below HOME: SGLang 0.5.23 keeps its own kernels, and those of Triton, Inductor, TileLang and FlashInfer, there."""
TUNED = "flashinfer/autotune"
"""Below that: tactics, one file a rank."""
FILES_MAX = 100_000
KEY_DIGITS = 16


def key(package: Path, base: str) -> str:
    """SHA-256, shortened, over the recipe and the digest of the base image."""
    whole = hashlib.sha256(f"base {base}\n".encode())
    for name in RECIPE:
        path = package / name
        content = path.read_bytes() if path.is_file() else b""
        whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:KEY_DIGITS]


def folder(root: Path, key_: str) -> Path:
    """HOME of the ranks of images with that key."""
    return root / "cache" / key_ if key_ else root / "cache"


def facts(root: Path) -> list[dict[str, Any]]:
    """Each key's folder: files, bytes, and a digest of the tactics that does not depend on the rank."""
    base = root / "cache"
    names = sorted(entry.name for entry in base.iterdir() if entry.is_dir()) if base.is_dir() else []
    return [_one(base / name, name) for name in names if not name.startswith(".")]


def _one(home: Path, name: str) -> dict[str, Any]:
    files = size = 0
    tuned = hashlib.sha256()
    tactics: list[Path] = []
    for where, folders, found in os.walk(home / SGLANG):
        folders.sort()
        for file in sorted(found):
            path = Path(where) / file
            try:
                size += path.stat().st_size
            except OSError:
                continue
            files += 1
            if f"/{TUNED}/" in f"{path}" and file.startswith("rank_") and file.endswith(".json"):
                tactics.append(path)
        if files > FILES_MAX:
            break
    for path in tactics:
        # one file a rank, named by it: the folder says which model and shapes, the content which tactics
        tuned.update(str(path.parent.relative_to(home)).encode() + b"\n" + path.read_bytes())
    return {
        "key": name,
        "files": files,
        "bytes": size,
        "tuned_sha256": tuned.hexdigest() if tactics else None,
    }
