"""Fetch a pinned revision of a checkpoint from a hub: resumable, bounded in memory, every file checked.

``python -m sparkyard_engine.fetch --repository R --revision V --output DIR --status FILE``. The hub is the one of
`HF_ENDPOINT`. `huggingface_hub` brings the bytes; it does not check them, so this does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "HF_HUB_DISABLE_XET", "1"
)  # xet holds whole chunks in memory: below 1 GiB on a serving head
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

THREADS = 4
ATTEMPTS = 6
PAUSE_MAX_S = 30.0
READ_BYTES = 8 << 20
SPACE_MARGIN_BYTES = 1 << 30
DIGESTS = "sparkyard-digests.json"
STATUS_EVERY_S = 1.0


class FetchError(Exception):
    """The checkpoint could not be fetched; the text names the file and what was wrong."""


@dataclass(frozen=True)
class Wanted:
    """One file of the revision. ``sha256`` is None for small files, whose git digest is checked instead."""

    name: str
    size_bytes: int
    sha256: str | None
    git_sha1: str | None


def wanted(info: Any) -> list[Wanted]:
    """Files of a model's description (`model_info(files_metadata=True)`). FetchError when sizes are missing."""
    found = []
    for entry in info.siblings or []:
        if entry.size is None:
            raise FetchError(f"{entry.rfilename}: the hub does not tell its size")
        digest = entry.lfs.sha256 if entry.lfs is not None else None
        found.append(Wanted(entry.rfilename, int(entry.size), digest, None if digest else entry.blob_id))
    if not found:
        raise FetchError("the hub lists no files for this revision")
    return found


def check(path: Path, file: Wanted) -> str:
    """What is wrong with a file that arrived; empty when nothing is."""
    size = path.stat().st_size
    if size != file.size_bytes:
        return f"{size:,} bytes, expected {file.size_bytes:,}"
    if file.sha256 is None and file.git_sha1 is None:
        return ""
    seen = hashlib.sha256() if file.sha256 else hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as opened:
        while data := opened.read(READ_BYTES):
            seen.update(data)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    digest = file.sha256 or file.git_sha1 or ""
    return "" if seen.hexdigest() == digest else f"digest {seen.hexdigest()[:12]}, expected {digest[:12]}"


class Progress:
    """The job's status file."""

    def __init__(self, path: Path | None, total: int) -> None:
        self._path = path
        self._total = total
        self._done = 0
        self._last_s = 0.0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Bytes that are here and right."""
        with self._lock:
            self._done += size
        self.write("running", "")

    def write(self, state: str, error: str) -> None:
        """Write the status, at most once a second while it runs."""
        now = time.monotonic()
        if self._path is None or (state == "running" and now - self._last_s < STATUS_EVERY_S):
            return
        self._last_s = now
        body = {
            "schema": "sparkyard/job-status/v1",
            "state": state,
            "done": self._done,
            "total": self._total,
            "unit": "bytes",
            "note": "",
            "error": error,
            "updated_unix_s": time.time(),
        }
        _replace(self._path, json.dumps(body))


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(name).replace(path)


def fetch(repository: str, revision: str, output: Path, status: Path | None) -> Path:
    """Bring every file of the revision below ``output``; the path of the digest list, written last.

    Raises:
        FetchError: no space, a file that stays wrong, a hub that stays away.
    """
    from huggingface_hub import HfApi

    output.mkdir(parents=True, exist_ok=True)
    info = _again(
        lambda: HfApi().model_info(repository, revision=revision, files_metadata=True), "the list of files"
    )
    files = wanted(info)
    known = _known(output, str(info.sha))
    missing = [
        file for file in files if known.get(file.name) != _digest_of(file) or not _same_size(output, file)
    ]
    need = sum(file.size_bytes for file in missing)
    free = shutil.disk_usage(output).free
    if free < need + SPACE_MARGIN_BYTES:
        raise FetchError(
            f"{output}: {free:,} bytes free, {need + SPACE_MARGIN_BYTES:,} needed for {len(missing)} files"
        )
    progress = Progress(status, sum(file.size_bytes for file in files))
    progress.add(sum(file.size_bytes for file in files) - need)
    with ThreadPoolExecutor(THREADS) as pool:
        running = {pool.submit(_one, repository, str(info.sha), output, file): file for file in missing}
        try:
            for ended in as_completed(running):
                ended.result()
                file = running[ended]
                known[file.name] = _digest_of(file)
                _replace(output / DIGESTS, _listing(str(info.sha), known))
                progress.add(file.size_bytes)
        except BaseException as error:
            for other in running:
                other.cancel()
            progress.write("failed", str(error))
            raise
    _replace(output / DIGESTS, _listing(str(info.sha), known))
    progress.write("done", "")
    return output / DIGESTS


def _listing(revision: str, known: dict[str, str]) -> str:
    return json.dumps(
        {"schema": "sparkyard/digests/v1", "revision": revision, "files": known}, sort_keys=True
    )


def _digest_of(file: Wanted) -> str:
    return file.sha256 or file.git_sha1 or ""


def _known(output: Path, revision: str) -> dict[str, str]:
    """Files that an earlier run checked, of this revision."""
    try:
        body = json.loads((output / DIGESTS).read_bytes())
        return dict(body["files"]) if body["revision"] == revision else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _same_size(output: Path, file: Wanted) -> bool:
    try:
        return (output / file.name).stat().st_size == file.size_bytes
    except OSError:
        return False


def _one(repository: str, revision: str, output: Path, file: Wanted) -> None:
    """One file, checked. What is wrong is thrown away and fetched once more: a cache on the way may be bad."""
    from huggingface_hub import hf_hub_download

    words = ""
    for force in (False, True):
        path = _again(
            lambda force=force: hf_hub_download(
                repository, file.name, revision=revision, local_dir=output, force_download=force
            ),
            file.name,
        )
        words = check(Path(path), file)
        if not words:
            return
        Path(path).unlink()
    raise FetchError(f"{file.name}: {words}, twice; it was removed")


def _again(ask: Any, what: str) -> Any:
    """Ask until it works; what cannot get better is raised at once. FetchError at the end."""
    from huggingface_hub.errors import HfHubHTTPError

    pause_s = 0.5
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return ask()
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            if 400 <= status < 500 and status not in {408, 425, 429}:
                raise FetchError(f"{what}: the hub answered {status}: {str(error).splitlines()[0]}") from None
            words = f"the hub answered {status}"
        except (OSError, RuntimeError) as error:  # broken connections, short bodies
            words = f"{type(error).__name__}: {error}"
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in {"httpx", "httpcore", "requests", "urllib3"}:
                raise
            words = f"{type(error).__name__}: {error}"
        if attempt < ATTEMPTS:
            time.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)
    raise FetchError(f"{what}: {words}, {ATTEMPTS} times")


def main() -> int:
    """0: every file is here and right. 1: it is not, with the reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--status", type=Path)
    asked = parser.parse_args()
    try:
        sys.stdout.write(f"{fetch(asked.repository, asked.revision, asked.output, asked.status)}\n")
    except FetchError as error:
        sys.stderr.write(f"fetch: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
