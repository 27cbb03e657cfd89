"""The one place where an archive becomes files: every entry is judged before the first byte is written."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath

from node_agent.files import sync_folder
from node_agent.wire import Refused

ENTRIES_MAX = 4096
"""The engine package has about 120."""
NAME_MAX = 400


def unpack(blob: Path, target: Path, max_bytes: int) -> int:
    """Unpack a zip into the empty folder ``target``, durably; the bytes written.

    Raises:
        Refused: an entry is no plain file below the folder, stands twice, is encrypted, or the whole is above its
            bounds; nothing was written then.
        OSError, zipfile.BadZipFile: it cannot be read, or an entry's bytes are not what its checksum says.
    """
    with zipfile.ZipFile(blob) as archive:
        entries = archive.infolist()
        if len(entries) > ENTRIES_MAX:
            raise Refused(f"{blob}: {len(entries):,} entries, expected at most {ENTRIES_MAX:,}")
        if sum(entry.file_size for entry in entries) > max_bytes:
            raise Refused(f"{blob}: unpacks to more than {max_bytes:,} bytes")
        places: dict[tuple[str, ...], zipfile.ZipInfo] = {}
        for entry in entries:
            if why := _fault(entry):
                raise Refused(f"{blob}: entry {entry.filename[:NAME_MAX]!r} {why}")
            parts = PurePosixPath(entry.filename).parts
            if parts in places or any(parts[:depth] in places for depth in range(1, len(parts))):
                raise Refused(f"{blob}: entry {entry.filename[:NAME_MAX]!r} stands twice, or below a file")
            places[parts] = entry
        for parts, entry in places.items():
            _write(archive, entry, target.joinpath(*parts))
    for folder, _, _ in os.walk(target):
        sync_folder(Path(folder))
    return sum(entry.file_size for entry in entries)


def _fault(entry: zipfile.ZipInfo) -> str:
    # `orig_filename` is what stands in the archive: `filename` was cut at a NUL and had its separators changed.
    name, kind = entry.orig_filename, stat.S_IFMT(entry.external_attr >> 16)
    if name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name or not name:
        return "leaves the folder"
    if len(name) > NAME_MAX or any(part in {"", "."} for part in name.split("/")):
        return "is no plain file name"
    if kind not in {0, stat.S_IFREG}:
        return "is a link or a special file"
    if entry.flag_bits & 1:
        return "is encrypted"
    return ""


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, path.open("xb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
