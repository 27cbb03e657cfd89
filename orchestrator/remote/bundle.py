"""The agent as one file: a zip of `node_agent/` that Python runs, the same bytes for the same sources."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "node_agent"
ENTRY = """import sys

if sys.version_info < (3, 10):
    sys.exit("sparkyard needs Python 3.10 or newer on the node; %s is %s: install one, or name it in the cluster file "
             "(nodes.*.python)" % (sys.executable, sys.version.split()[0]))
from node_agent.__main__ import main

sys.exit(main())
"""
"""In words that every Python understands: the agent's own files do not even compile below 3.10."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold: a fixed one makes the bytes depend on the sources only."""


@cache
def agent() -> tuple[str, bytes]:
    """SHA-256 and bytes of the zipapp."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", EPOCH), ENTRY)
        for path in sorted((*SOURCES.rglob("*.py"), *SOURCES.rglob("*.json"))):
            name = f"node_agent/{path.relative_to(SOURCES).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest(), data
