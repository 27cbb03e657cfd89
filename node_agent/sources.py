"""What a rank will be started from, by digest, so that nodes can be compared before anything is started."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

from node_agent.files import read_json
from node_agent.home import Home
from node_agent.look import SLICES_MAX_BYTES

BLOCK_BYTES = 1 << 20
FILES_MAX = 64
TREE_FILES_MAX = 5000
LAYERS_MAX = 64
KINDS_MAX = 2000
NCCL = "nvidia/nccl/lib/libnccl.so.2"
"""Below site-packages, where torch's own wheels put it."""
AUTOTUNE = "flashinfer/autotune"
"""Below SGLang's cache folder: one folder a version, device and model, one file a rank (SGLang 0.5.23)."""
_KNOWN: dict[tuple[str, int, int, int], str] = {}
_LOCK = threading.Lock()
"""Digests of files by path, inode, size and time of change: a library of 400 MB is read once an agent."""


def read(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """Digests of one rank's sources.

    `args`: `rank`, `engine` (digest of the package) and `python` (of the engine's environment), both empty when they
    are in an image, `tables` and `slices` (store ids, empty: none), `files` (absolute paths that the profile names).
    """
    rank = int(args["rank"])
    engine = str(args.get("engine") or "")
    package = home.engines / engine
    python = str(args.get("python") or "")
    cache = (Path.home() if python else home.root / "cache") / ".cache" / "sglang"
    return {
        "plugin": tree_sha256(package) if engine and package.is_dir() else None,
        "nccl": _nccl(python) if python else None,
        "files": {str(path): _sha256(Path(path)) for path in list(args.get("files") or [])[:FILES_MAX]},
        "autotune": _autotune(cache / AUTOTUNE, rank),
        "tables": _tables(home, str(args.get("tables") or "")),
        "slices": _slices(home, str(args.get("slices") or "")),
    }


def tree_sha256(folder: Path) -> str:
    """Over names and contents of all files, compiled caches left out."""
    digest = hashlib.sha256()
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for path in sorted(paths)[:TREE_FILES_MAX]:
        digest.update(f"{path.relative_to(folder)}\0{_sha256(path)}\n".encode())
    return digest.hexdigest()


def _nccl(python: str) -> str | None:
    """Of the environment that this Python belongs to; None where it has no NCCL (builds for the CPU)."""
    for base in (Path(python).parent.parent, Path(os.path.realpath(python)).parent.parent):
        for found in sorted(base.glob(f"lib/python3*/site-packages/{NCCL}")):
            return _sha256(found)
    return None


def _autotune(folder: Path, rank: int) -> dict[str, str]:
    """Tuning results of this rank by version, device and model: equal on all ranks, or SGLang throws them all away."""
    found = {}
    for path in sorted(folder.glob(f"*/*/*/rank_tp{rank}_*.json"))[:FILES_MAX]:
        known = read_json(path)
        text = json.dumps(known, sort_keys=True).encode()
        found[str(path.parent.relative_to(folder))] = hashlib.sha256(text).hexdigest()
    return found


def _tables(home: Home, store: str) -> dict[str, Any] | None:
    """Identity and row ranges of a packed store (docs/engram-store.md)."""
    manifest = read_json(home.packs / store / "manifest.json") if store else None
    if manifest is None:
        return None
    layers = manifest.get("layers")
    return {
        **{
            key: manifest.get(key)
            for key in ("store_id", "revision", "index_sha256", "tp", "rank", "ownership")
        },
        "layers": [
            {key: layer.get(key) for key in ("layer", "table_rows", "rows", "ranges")}
            for layer in (layers if isinstance(layers, list) else [])[:LAYERS_MAX]
        ],
    }


def _slices(home: Home, store: str) -> dict[str, Any] | None:
    """Identity of a slice store, and which part of each kind of tensor it has (docs/formats.md)."""
    manifest = read_json(home.slices / store / "manifest.json", SLICES_MAX_BYTES) if store else None
    if manifest is None:
        return None
    identity = manifest.get("identity")
    own = identity if isinstance(identity, dict) else {}
    found = {key: own.get(key) for key in ("revision", "index_sha256", "tp", "rank", "padding")}
    return {"id": manifest.get("id"), **found, "kinds": kinds(manifest.get("tensors"))}


def kinds(tensors: Any) -> list[dict[str, Any]]:
    """Tensors whose names differ in numbers only, counted by what the rank has of them: some tens instead of 70,000."""
    found: dict[str, dict[str, Any]] = {}
    for entry in tensors if isinstance(tensors, list) else ():
        name = re.sub(r"\d+", "#", str(entry.get("name")))
        kind = {
            "name": name,
            "axis": entry.get("axis"),
            "shape": entry.get("shape"),
            "pieces": entry.get("pieces") or [],
            "filled": entry.get("filled") or [],
        }
        known = found.setdefault(json.dumps(kind, sort_keys=True), {**kind, "count": 0})
        known["count"] += 1
    return list(found.values())[:KINDS_MAX]


def _sha256(path: Path) -> str | None:
    """None when there is no such file."""
    try:
        with path.open("rb") as file:
            seen = os.fstat(file.fileno())
            key = (str(path), seen.st_ino, seen.st_size, seen.st_mtime_ns)
            with _LOCK:
                if key in _KNOWN:
                    return _KNOWN[key]
            digest = hashlib.sha256()
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    except OSError:
        return None
    with _LOCK:
        _KNOWN[key] = digest.hexdigest()
    return digest.hexdigest()
