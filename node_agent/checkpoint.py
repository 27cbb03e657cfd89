"""The checkpoint as this node reads it: index, shards, sizes. Reads headers only."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import time
from pathlib import Path
from typing import Any, BinaryIO

from node_agent.nfs import text
from node_agent.wire import Refused

INDEX = "model.safetensors.index.json"
INDEX_MAX_BYTES = 64 << 20
"""The V4.1 index names 96,085 tensors in about 10 MB."""
HEADER_MAX_BYTES = 100 << 20
"""Limit of the safetensors format for a header."""
BLOCK_BYTES = 64 << 10
NAME_MAX = 255
READ_AT_LEAST_BYTES = io.DEFAULT_BUFFER_SIZE
"""A buffered file fetches so much at once; at least a page."""
CONFIG_KEYS = (
    "architectures",
    "model_type",
    "num_attention_heads",
    "o_groups",
    "hidden_size",
    "num_hidden_layers",
    "vocab_size",
    "engram_layer_ids",
    "engram_num_embeddings",
    "max_position_embeddings",
)


def facts(path: Path) -> dict[str, Any]:
    """What stands at ``path``; problems are listed, nothing is raised."""
    found: dict[str, Any] = {"path": str(path), "problems": []}
    index_path = path / INDEX
    try:
        with index_path.open("rb") as file:
            data = file.read(INDEX_MAX_BYTES + 1)
        if len(data) > INDEX_MAX_BYTES:
            raise ValueError(f"over {INDEX_MAX_BYTES} bytes")
        shards = sorted(set(json.loads(data)["weight_map"].values()))
    except OSError as error:
        found["problems"].append(f"{index_path}: {error.strerror}")
        return found
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        found["problems"].append(f"{index_path}: not a safetensors index ({error})"[:500])
        return found
    found["index_sha256"] = hashlib.sha256(data).hexdigest()
    found["shards"] = len(shards)
    total = 0
    root = shared_root(path)
    for name in shards:
        if not is_plain(name):
            found["problems"].append(f"{index_path}: shard name {name!r} is not a plain file name"[:500])
            continue
        try:
            total += _shard_bytes(_inside(path / name, root))
        except OSError as error:
            found["problems"].append(f"{path / name}: {error.strerror}")
        except ValueError as error:
            found["problems"].append(f"{path / name}: {error}")
    found["total_bytes"] = total
    found["problems"] = found["problems"][:64]
    found["config"] = _config(path / "config.json")
    return found


def is_plain(name: Any) -> bool:
    """Whether it is the name of a file in the folder, and leads nowhere else."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= NAME_MAX
        and name.isprintable()
        and name[0] != "."
        and "/" not in name
    )


def shared_root(path: Path) -> str:
    """The folder that holds all files of the checkpoint at ``path``: itself, or of a cache's snapshot its repository.

    On a client the repository is what is mounted, under a name that does not say so.
    """
    real = Path(os.path.realpath(path))
    repository = real.parent.parent
    if real.parent.name == "snapshots" and repository.name and os.path.ismount(repository):
        return str(repository)
    return text.split(str(real))[0]


def _inside(path: Path, root: str) -> Path:
    """The path, when what it leads to lies below ``root``. ValueError when a link leaves it.

    A client resolves the links of a share on its own disk: one that leaves it would read another file there, and a
    container sees the folder only.
    """
    real = os.path.realpath(path)
    if not (real + "/").startswith(root.rstrip("/") + "/"):
        raise ValueError(
            f"a link to {real}, outside of what is shared ({root}): copy the file into the folder"
        )
    return path


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes()[: 4 << 20])
        config = {**config, **config.get("text_config", {})}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {key: config[key] for key in CONFIG_KEYS if key in config}


_known: dict[tuple[str, int, int, int], int] = {}


def _shard_bytes(path: Path) -> int:
    """Size of a shard whose file is exactly as long as its header says. ValueError when it is not."""
    status = path.stat()
    key = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
    if key in _known:
        return _known[key]
    with path.open("rb") as file:
        length, end = _header(file, status.st_size)
        # A look must not keep weights in memory: the last page of the header holds some.
        os.posix_fadvise(file.fileno(), 0, 8 + length + READ_AT_LEAST_BYTES, os.POSIX_FADV_DONTNEED)
    expected = 8 + length + end
    if expected != status.st_size:
        raise ValueError(f"{status.st_size} bytes, its header says {expected}: truncated or overwritten")
    _known[key] = status.st_size
    return status.st_size


def _header(file: BinaryIO, size: int) -> tuple[int, int]:
    """Length of the header, and where the last tensor ends behind it. ValueError when it is none."""
    # no reading ahead: what follows are gigabytes of weights
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    head = file.read(8)
    if len(head) < 8:
        raise ValueError(f"{size} bytes: too short for a safetensors file")
    length = int.from_bytes(head, "little")
    if length > HEADER_MAX_BYTES or 8 + length > size:
        raise ValueError(f"the header claims {length} bytes, the file has {size}: truncated")
    try:
        header = json.loads(file.read(length))
        end = max(
            (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"),
            default=0,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("the header is not a safetensors header") from None
    return length, end


def prove(path: Path, index_sha256: str, seed: int, blocks: int) -> dict[str, Any]:
    """Read the index and ``blocks`` blocks of 64 KiB at seeded places of all shards.

    Returns:
        The record that is compared between nodes: `blocks_sha256` covers place and content of every block.

    Raises:
        Refused: another index, or a shard that cannot be read.
    """
    seen = facts(path)
    if seen["problems"]:
        raise Refused(
            f"the checkpoint at {path} is not whole: {seen['problems'][0]}", evidence=seen["problems"]
        )
    if seen["index_sha256"] != index_sha256:
        raise Refused(
            f"{path / INDEX} has digest {seen['index_sha256'][:12]}, the source has {index_sha256[:12]}"
        )
    weight_map = json.loads((path / INDEX).read_bytes())["weight_map"]
    shards = [(name, (path / name).stat().st_size) for name in sorted(set(weight_map.values()))]
    chooser = random.Random(seed)  # noqa: S311 - places to compare, not a secret
    digest = hashlib.sha256()
    begin, read = time.monotonic(), 0
    for _ in range(blocks):
        name, size = shards[chooser.randrange(len(shards))]
        offset = chooser.randrange(max(1, size - BLOCK_BYTES))
        handle = os.open(path / name, os.O_RDONLY)
        try:
            block = os.pread(handle, BLOCK_BYTES, offset)
        except OSError as error:
            raise Refused(f"{path / name}: {error.strerror} at offset {offset}") from None
        finally:
            os.close(handle)
        digest.update(f"{name}:{offset}:{len(block)}:".encode())
        digest.update(block)
        read += len(block)
    seconds = max(time.monotonic() - begin, 1e-9)
    return {
        "index_sha256": index_sha256,
        "seed": seed,
        "blocks": blocks,
        "blocks_sha256": digest.hexdigest(),
        "bytes_read": read,
        "bytes_per_s": read / seconds,
    }
