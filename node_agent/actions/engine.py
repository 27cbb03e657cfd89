"""Install the engine package: unpack it into a folder named by its digest."""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
import zlib
from typing import Any

from node_agent import archive
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
        written = archive.unpack(blob, temporary, PACKAGE_MAX_BYTES)
        os.rename(temporary, target)
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise Refused(f"unpacking {blob}: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(home.engines)
    return {"bytes_written": written}
