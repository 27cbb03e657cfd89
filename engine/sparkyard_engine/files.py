"""Small files that another process reads while we write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME_MAX = 256  # bytes of a file name on ext4 and xfs, and one


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write `value` so that a reader sees the old file or the new one, never a part of one.

    Raises OSError when the folder is missing or full; the temporary file is then removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, sort_keys=True, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_plain(name: object) -> bool:
    """Whether it is the name of a file in a folder, as an index of shards has them, and leads nowhere else."""
    return (
        isinstance(name, str)
        and 0 < len(name) < NAME_MAX
        and not name.startswith(".")
        and not set("/\0") & set(name)
    )


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable. OSError as open(2) and fsync(2) raise it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, limit_bytes: int) -> dict[str, Any] | None:
    """The JSON object in `path`; None when the file is missing, above the limit, or no object."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
    except OSError:
        return None
    if len(raw) > limit_bytes:
        return None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
