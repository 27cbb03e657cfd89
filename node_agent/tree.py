"""Care of a checkpoint's files: what is wrong with a tree, named; and the digest of every shard, in parallel.

Where the expected digests come from, in this order: names of the blobs of a Hugging Face cache, which are SHA-256
for large files; the records that `huggingface_hub` leaves beside files in a plain folder. What neither names is
hashed and reported, and compared between nodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from node_agent.checkpoint import INDEX, INDEX_MAX_BYTES, is_plain
from node_agent.wire import Refused, Report

READ_BYTES = 8 << 20
THREADS = 8
"""SHA-256 runs at about 1 GB/s a core on Grace; eight keep an NVMe disk busy."""
SAMPLE_BYTES = 64 << 10
SAMPLES = 16
SPARSE_SHARE = 0.9
"""A shard whose disk blocks hold less than this share of its size has holes: a download that was never filled."""
SHA256_LENGTH = 64
RECORDS = Path(".cache") / "huggingface" / "download"
DIGESTS = "sparkyard-digests.json"
"""Written by `fetch` beside the files: name -> SHA-256 as the hub names it, and the revision."""
PROBLEMS_MAX = 64


def faults(path: Path) -> list[str]:
    """What is wrong with the tree at ``path``; empty when nothing is. Reads headers and samples, not the files."""
    found: list[str] = []
    try:
        names = shards(path)
    except (OSError, ValueError) as error:
        return [f"{path / INDEX}: {error}"]
    for name in [INDEX, *names]:
        file = path / name
        if file.is_symlink() and not file.exists():
            found.append(
                f"{name}: dangling: a link to {os.readlink(file)}, which is not there; remove it and fetch again"
            )
        elif not file.exists():
            found.append(f"{name}: missing; fetch it")
        elif words := _hollow(file):
            found.append(f"{name}: {words}")
    found += _unfinished(path)
    found += _revisions(path)
    return found[:PROBLEMS_MAX]


def shards(path: Path) -> list[str]:
    """Names of the shards in the index. OSError, ValueError when it cannot be read."""
    with (path / INDEX).open("rb") as file:
        data = file.read(INDEX_MAX_BYTES + 1)
    try:
        names = set(json.loads(data)["weight_map"].values())
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("not a safetensors index") from None
    if bad := [name for name in names if not is_plain(name)]:
        raise ValueError(f"shard name {str(bad[0])[:100]!r} is not a plain file name")
    return sorted(names)


def _hollow(file: Path) -> str:
    """Why a file has no content where it should; empty when it looks filled."""
    status = file.stat()
    if status.st_size == 0:
        return "empty: 0 bytes; remove it and fetch again"
    if status.st_blocks * 512 < status.st_size * SPARSE_SHARE and status.st_size > SAMPLE_BYTES:
        return f"sparse: {status.st_blocks * 512:,} of {status.st_size:,} bytes are on disk; remove it and fetch again"
    with file.open("rb") as opened:
        if not any(opened.read(8)):
            return "zero-filled: its first bytes are zero; remove it and fetch again"
        zeros = 0
        for number in range(SAMPLES):
            opened.seek(
                (status.st_size - SAMPLE_BYTES) * number // SAMPLES if status.st_size > SAMPLE_BYTES else 0
            )
            zeros += not any(opened.read(SAMPLE_BYTES))
    # The first sample has the header. Padding and empty tensors exist, a file of nothing else does not.
    if status.st_size > SAMPLE_BYTES * SAMPLES and zeros >= SAMPLES - 1:
        return f"zero-filled: {zeros} of {SAMPLES} samples are zero; remove it and fetch again"
    return ""


def _unfinished(path: Path) -> list[str]:
    """Downloads that `huggingface_hub` did not finish."""
    places = [path / RECORDS, *([path.parent.parent / "blobs"] if path.parent.name == "snapshots" else [])]
    found = []
    for place in places:
        if place.is_dir():
            found += [
                f"{entry.name}: partial: a download that stopped; fetch goes on with it"
                for entry in sorted(place.iterdir())
                if entry.name.endswith(".incomplete")
            ]
    return found


def _revisions(path: Path) -> list[str]:
    """Files of more than one revision in a plain folder; a snapshot of the cache has one by construction."""
    seen: dict[str, list[str]] = {}
    for name, (revision, _) in records(path).items():
        seen.setdefault(revision, []).append(name)
    if len(seen) < 2:
        return []
    parts = [
        f"{len(names)} of {revision[:12]} (such as {names[0]})" for revision, names in sorted(seen.items())
    ]
    return [f"mixed revisions: {', '.join(parts)}; fetch the pinned one"]


def records(path: Path) -> dict[str, tuple[str, str]]:
    """Name -> (revision, etag) from the records of `huggingface_hub` in a plain folder; empty where there are none."""
    found: dict[str, tuple[str, str]] = {}
    place = path / RECORDS
    if not place.is_dir():
        return found
    for entry in sorted(place.iterdir()):
        if entry.name.endswith(".metadata"):
            lines = entry.read_text(encoding="utf-8", errors="replace").splitlines()
            name = entry.name.removesuffix(".metadata")
            if len(lines) >= 2 and (path / name).exists():
                found[name] = (lines[0].strip(), lines[1].strip())
    return found


def expected(path: Path) -> dict[str, str]:
    """Name -> SHA-256 where one is known."""
    known: dict[str, str] = {}
    for name, (_, etag) in records(path).items():
        if _is_sha256(etag):
            known[name] = etag
    for entry in path.iterdir():
        if entry.is_symlink():
            blob = Path(os.readlink(entry)).name
            if _is_sha256(blob):
                known[entry.name] = blob
    try:
        listed = json.loads((path / DIGESTS).read_bytes())["files"]
        known |= {str(name): str(digest) for name, digest in listed.items() if _is_sha256(str(digest))}
    except (OSError, ValueError, KeyError, AttributeError):
        pass
    return known


def _is_sha256(word: str) -> bool:
    return len(word) == SHA256_LENGTH and not set(word) - set("0123456789abcdef")


def verify(path: Path, report: Report) -> dict[str, Any]:
    """Hash every shard and the index.

    Returns:
        `files`: name -> digest; `wrong`: what differs from the expected digest; `unknown`: names without one;
        `faults`: as `faults`.

    Raises:
        Refused: the index cannot be read.
    """
    try:
        names = [INDEX, *shards(path)]
    except (OSError, ValueError) as error:
        raise Refused(f"{path / INDEX}: {error}") from None
    names = [name for name in names if (path / name).is_file()]
    total = sum((path / name).stat().st_size for name in names)
    known = expected(path)
    lock, done = threading.Lock(), 0

    def progress(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            report({"done": done, "total": total, "unit": "bytes"})

    with ThreadPoolExecutor(THREADS) as pool:
        digests = dict(zip(names, pool.map(lambda name: _digest(path / name, progress), names)))  # noqa: B905
    wrong = [
        f"{name}: digest {digests[name][:12]}, expected {known[name][:12]}; remove it and fetch again"
        for name in names
        if name in known and digests[name] != known[name]
    ]
    unknown = [name for name in names if name not in known]
    return {"path": str(path), "files": digests, "wrong": wrong, "unknown": unknown, "faults": faults(path)}


def _digest(path: Path, progress: Any) -> str:
    """SHA-256 of a file; its pages leave the cache behind us, a checkpoint is larger than memory."""
    seen = hashlib.sha256()
    handle = os.open(path, os.O_RDONLY)
    try:
        offset = 0
        while data := os.pread(handle, READ_BYTES, offset):
            seen.update(data)
            os.posix_fadvise(handle, offset, len(data), os.POSIX_FADV_DONTNEED)
            offset += len(data)
            progress(len(data))
    except OSError as error:
        raise Refused(f"{path}: {error.strerror} at offset {offset}") from None
    finally:
        os.close(handle)
    return seen.hexdigest()
