"""Files that are whole or not there: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

JSON_MAX_BYTES = 4 << 20
"""Largest JSON file that the agent reads: its own records are a few KiB."""


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` by ``data``; a reader sees the old or the new content, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """As `write_bytes`, of one JSON object."""
    write_bytes(path, json.dumps(value, sort_keys=True).encode())


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def read_json(path: Path, max_bytes: int = JSON_MAX_BYTES) -> dict[str, Any] | None:
    """The object in ``path``; None when it is absent, too large, or not a JSON object."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            return None
        value = json.loads(data, parse_constant=_no_number)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def tail(path: Path, lines: int, max_bytes: int = 65536) -> list[str]:
    """The last lines of a text file, at most ``max_bytes`` of it; each line cut at 2,000 characters."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except OSError:
        return []
    return [line[:2000] for line in data.decode("utf-8", "replace").splitlines()[-lines:]]
