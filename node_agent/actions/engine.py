"""Install the engine package: unpack it into a folder named by its digest."""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
from pathlib import Path
from typing import Any

from node_agent.files import sync_folder
from node_agent.home import Home
from node_agent.wire import Refused, Report

PACKAGE_MAX_BYTES = 256 << 20
"""Bound on the unpacked size: the package is source code, under 2 MiB."""


def install(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Unpack the blob; the folder gets its name last, so it is whole or not there."""
    digest = args["digest"]
    target, blob = home.engines / digest, home.blobs / digest
    if target.is_dir():
        return {"bytes_written": 0}
    temporary = home.engines / f".{digest[:16]}.{secrets.token_hex(4)}.tmp"
    temporary.mkdir(parents=True)
    try:
        written = _unpack(blob, temporary)
        for folder, _, _ in os.walk(temporary):
            sync_folder(Path(folder))
        os.rename(temporary, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"unpacking {blob}: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(home.engines)
    return {"bytes_written": written}


def _unpack(blob: Path, target: Path) -> int:
    written = 0
    with zipfile.ZipFile(blob) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > PACKAGE_MAX_BYTES:
            raise Refused(f"{blob}: unpacks to more than {PACKAGE_MAX_BYTES:,} bytes")
        for entry in entries:
            parts = Path(entry.filename).parts
            if entry.filename.startswith("/") or ".." in parts or not parts or entry.is_dir():
                raise Refused(f"{blob}: entry {entry.filename!r} leaves the folder")
            path = target.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
                file.flush()
                os.fsync(file.fileno())
            written += entry.file_size
    return written
