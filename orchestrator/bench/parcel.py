"""Packs the load generator and its pure-Python libraries into one archive that runs on any node with Python
3.11.

The archive is built from what runs here, so that every place measures with the same client.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from functools import cache
from pathlib import Path

from orchestrator.errors import SparkyardError

LIBRARIES = ("httpx", "httpcore", "h11", "anyio", "idna", "certifi", "typing_extensions")
PACKAGE = "loadgen"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that zip knows: equal inputs give an equal archive
HEADER_BYTES = 80  # 16 digits of length, 64 of SHA-256

BOOTSTRAP = f"""
import hashlib, os, runpy, sys, tempfile
if sys.version_info < (3, 11):
    found = sys.version.split()[0]
    print('{{"failed": "the load generator needs Python 3.11, this node has ' + found + '"}}', flush=True)
    sys.exit(1)
def take(size):
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            sys.exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
header = take({HEADER_BYTES})
archive = take(int(header[:16]))
if hashlib.sha256(archive).hexdigest().encode() != header[16:]:
    print('{{"failed": "the load generator arrived damaged"}}', flush=True)
    sys.exit(1)
with tempfile.TemporaryDirectory(prefix="sparkyard-load-") as folder:
    path = os.path.join(folder, "load.pyz")
    with open(path, "wb") as file:
        file.write(archive)
    sys.path.insert(0, path)
    runpy.run_module("{PACKAGE}", run_name="__main__", alter_sys=True)
"""
"""Constant program for `python3 -I -c`: reads the archive from standard input, runs it, removes it at the
end."""


def _files(name: str) -> list[tuple[str, Path]]:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SparkyardError(f"bench: the library {name} is missing; remove .venv and start again")
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return [(origin.name, origin)]
    root = origin.parent
    wanted = (path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return [(f"{name}/{path.relative_to(root)}", path) for path in wanted]


@cache
def parcel() -> bytes:
    """The archive with its header, ready to be written to `BOOTSTRAP`'s standard input."""
    files = [entry for name in LIBRARIES for entry in _files(name)]
    own = Path(__file__).parent / PACKAGE
    files += [(f"{PACKAGE}/{path.name}", path) for path in sorted(own.glob("*.py"))]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files:
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return f"{len(data):016d}{hashlib.sha256(data).hexdigest()}".encode() + data
