"""Reads a folder of evidence, or of raw logs that somebody collected by hand."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ConfigError

FILES_MAX = 200
FILE_MAX_BYTES = 1 << 20
"""The end of a log says why it ended; more of it is not read."""
TEXT = frozenset({"", ".log", ".txt", ".out", ".err", ".json", ".jsonl"})


def read(folder: Path) -> dict[str, list[str]]:
    """Lines by file name below ``folder``. ConfigError when it is no folder, or has nothing to read."""
    if folder.is_file():
        return {folder.name: _lines(folder)}
    if not folder.is_dir():
        raise ConfigError([f"{folder}: no such folder"])
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in TEXT)
    if not paths:
        raise ConfigError([f"{folder}: no logs in it (looked for {', '.join(sorted(TEXT - {''}))})"])
    return {path.relative_to(folder).as_posix(): _lines(path) for path in paths[:FILES_MAX]}


def newest(below: Path) -> Path | None:
    """The newest folder of evidence; None when there is none."""
    folders = sorted(
        path for path in (below.iterdir() if below.is_dir() else ()) if (path / "about.json").exists()
    )
    return folders[-1] if folders else None


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - FILE_MAX_BYTES))
            data = file.read(FILE_MAX_BYTES)
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    return data.decode("utf-8", "replace").splitlines()
