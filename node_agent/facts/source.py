"""Where facts come from: this machine, or a recording of one.

A reader asks a `Source` and cannot tell the two apart, so a recorded node is judged by exactly the code that
judges a real one. Absent is `None` or an empty list; all else that goes wrong is one of three errors.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from node_agent import privileged as privileged_seam

MAX_FILE_BYTES = 512 * 1024  # larger than any file read here; a runaway file must not fill the agent's memory
MAX_OUTPUT_BYTES = 4 * 1024 * 1024  # of one command: a day of kernel log is well below
MAX_RECORDING_BYTES = 32 * 1024 * 1024
RECORDING = "node.json"
MAX_LINK_HOPS = 40  # what Linux itself allows


class DeniedError(Exception):
    """The agent's user lacks the right to read this; the check is unknown, never fine."""


class UnreadableError(Exception):
    """It is there and cannot be read or understood."""


class MissingToolError(Exception):
    """A command that the reader needs is not installed; the text names the package that has it."""


class TimedOutError(Exception):
    """A command was still running when its own time ended, and was killed."""


class Ran(NamedTuple):
    """A command that ended: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


class Source(Protocol):
    """What a reader may ask. Paths are absolute; a missing thing is None or empty, never an exception."""

    @property
    def origin(self) -> str:
        """`live` or `recorded`; travels with every fact."""
        ...

    def text(self, path: str) -> str | None: ...

    def names(self, folder: str) -> list[str]: ...

    def target(self, path: str) -> str | None:
        """The absolute path that a symbolic link finally leads to; None when there is none."""
        ...

    def mode(self, path: str) -> int | None:
        """Permission bits, such as 0o600."""
        ...

    def size(self, path: str) -> int | None: ...

    def space(self, path: str) -> tuple[int, int] | None:
        """Bytes in all and bytes free for an ordinary user, of the file system that holds `path`."""
        ...

    def run(self, *argv: str, timeout_s: float, privileged: bool = False) -> Ran | None:
        """Run a command without a shell; None when it is not installed."""
        ...


class Live:
    """This machine.

    `root`, `sys` and `proc` can be moved for tests; `own` is sparkyard's folder on the node, seen as /sparkyard;
    `sudo` says that `sudo -n` was agreed on.
    """

    origin = "live"

    def __init__(
        self,
        root: str = "/",
        sys: str = "/sys",
        proc: str = "/proc",
        *,
        own: str = "/nonexistent",
        sudo: bool = False,
    ) -> None:
        self._roots = (("/sys", Path(sys)), ("/proc", Path(proc)), ("/sparkyard", Path(own)))
        self._root = Path(root)
        self._sudo = sudo

    def _place(self, path: str) -> Path:
        for prefix, place in self._roots:
            if path == prefix or path.startswith(prefix + "/"):
                return place / path[len(prefix) + 1 :]
        return self._root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        try:
            with self._place(path).open("rb") as file:
                return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except PermissionError as error:
            raise DeniedError(path) from error
        except OSError:
            # sysfs answers EINVAL for what a device has not: the speed of a link that is down, an empty GID
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._place(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            raise DeniedError(folder) from error
        except OSError as error:
            raise UnreadableError(f"{folder}: {error.strerror}") from error

    def target(self, path: str) -> str | None:
        place = self._place(path)
        if not place.is_symlink():
            return None
        resolved = place.resolve()
        for prefix, root in self._roots:
            if resolved.is_relative_to(root.resolve()):
                return f"{prefix}/{resolved.relative_to(root.resolve())}"
        return str(resolved)

    def _stat(self, path: str) -> os.stat_result | None:
        try:
            return self._place(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise DeniedError(path) from error
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror}") from error

    def mode(self, path: str) -> int | None:
        found = self._stat(path)
        return None if found is None else stat.S_IMODE(found.st_mode)

    def size(self, path: str) -> int | None:
        found = self._stat(path)
        return None if found is None else found.st_size

    def space(self, path: str) -> tuple[int, int] | None:
        try:
            found = os.statvfs(self._place(path))
        except OSError:
            return None
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def run(self, *argv: str, timeout_s: float, privileged: bool = False) -> Ran | None:
        command = list(argv)
        if privileged and os.geteuid() != 0:
            if not self._sudo:
                raise DeniedError(" ".join(argv))
            if not Path(privileged_seam.SUDO).exists():
                raise DeniedError(f"sudo is not installed: {' '.join(argv)}")
            if not privileged_seam.installed(argv):
                return None
            ran = _run(privileged_seam.command(argv), timeout_s)
            if ran is not None and privileged_seam.was_denied(ran.status, ran.err):
                raise DeniedError(f"sudo does not allow {' '.join(privileged_seam.absolute(argv))}")
            return ran
        return _run(command, timeout_s)


def _run(argv: list[str], timeout_s: float) -> Ran | None:
    """Run in a process group of its own, so that a hung tool's children die with it."""
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "NO_COLOR": "1"}
    environment["PATH"] = environment.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise DeniedError(argv[0]) from error
    except OSError as error:
        raise UnreadableError(f"{argv[0]}: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process in uninterruptible sleep (a wedged driver) does not die: it is left, its pipes closed.
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        raise TimedOutError(f"{' '.join(argv)[:80]} did not answer within {timeout_s:g} s") from error
    return Ran(process.returncode, _decode(out), _decode(err))


def _decode(data: bytes) -> str:
    return data[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")


class Recorded:
    """A recording: one JSON object with `files`, `links`, `modes`, `sizes`, `spaces` and `commands`.

    `files` maps a path to its text (or a list of its lines), `links` a path to the absolute path behind it,
    `commands` a command line to its output, or to `{"status", "out", "err"}`, or to `{"hangs": true}` or
    `{"denied": true}`. A path that is not recorded is absent.
    """

    origin = "recorded"

    def __init__(self, recording: Mapping[str, object]) -> None:
        self._files = {path: _joined(value) for path, value in _mapping(recording, "files").items()}
        self._links = {path: str(value) for path, value in _mapping(recording, "links").items()}
        self._modes = {path: int(str(value), 8) for path, value in _mapping(recording, "modes").items()}
        self._sizes = _mapping(recording, "sizes")
        self._spaces = _mapping(recording, "spaces")
        self._commands = _mapping(recording, "commands")
        self._denied = {path for path, value in _mapping(recording, "files").items() if value is False}
        self._children: dict[str, set[str]] = {}
        for path in [*self._files, *self._links, *self._modes, *self._sizes]:
            while path not in ("", "/"):
                parent, _, name = path.rpartition("/")
                siblings = self._children.setdefault(parent, set())
                if name in siblings:
                    break
                siblings.add(name)
                path = parent

    @classmethod
    def load(cls, path: str) -> Recorded:
        """A recording, or a folder with `node.json` in it. UnreadableError when it is none."""
        try:
            place = Path(path)
            if place.is_dir():
                place /= RECORDING
            if place.stat().st_size > MAX_RECORDING_BYTES:
                raise UnreadableError(f"{path}: more than {MAX_RECORDING_BYTES} bytes")
            recording = json.loads(place.read_text("utf-8"))
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise UnreadableError(f"{path}: not JSON: {error}") from error
        if not isinstance(recording, dict):
            raise UnreadableError(f"{path}: a recording is a JSON object")
        return cls(recording)

    def _resolve(self, path: str) -> str:
        for _ in range(MAX_LINK_HOPS):
            for prefix in _prefixes(path):
                if prefix in self._links:
                    path = self._links[prefix] + path[len(prefix) :]
                    break
            else:
                return path
        raise UnreadableError(f"{path}: too many levels of symbolic links")

    def text(self, path: str) -> str | None:
        resolved = self._resolve(path)
        if resolved in self._denied:
            raise DeniedError(path)
        return self._files.get(resolved)

    def names(self, folder: str) -> list[str]:
        return sorted(self._children.get(self._resolve(folder.rstrip("/")), ()))

    def target(self, path: str) -> str | None:
        return self._resolve(path) if path in self._links else None

    def mode(self, path: str) -> int | None:
        return self._modes.get(self._resolve(path), 0o644 if self._resolve(path) in self._files else None)

    def size(self, path: str) -> int | None:
        resolved = self._resolve(path)
        if resolved in self._sizes:
            return int(str(self._sizes[resolved]))
        text = self._files.get(resolved)
        return None if text is None else len(text)

    def space(self, path: str) -> tuple[int, int] | None:
        value = self._spaces.get(path)
        match value:
            case [int(total), int(free)]:
                return total, free
            case _:
                return None

    def run(self, *argv: str, timeout_s: float, privileged: bool = False) -> Ran | None:
        del privileged
        line = " ".join(argv)
        value = self._commands.get(line)
        match value:
            case None:
                return None
            case {"hangs": True}:
                raise TimedOutError(f"{line[:80]} did not answer within {timeout_s:g} s")
            case {"denied": True}:
                raise DeniedError(line)
            case dict():
                return Ran(
                    int(str(value.get("status", 0))),
                    _joined(value.get("out", "")),
                    _joined(value.get("err", "")),
                )
            case _:
                return Ran(0, _joined(value), "")


def _mapping(recording: Mapping[str, object], key: str) -> dict[str, object]:
    value = recording.get(key, {})
    if not isinstance(value, dict):
        raise UnreadableError(f"recording: {key} is not an object")
    return {str(name): item for name, item in value.items()}


def _joined(value: object) -> str:
    """A text, given as one string or as a list of its lines."""
    if isinstance(value, list):
        return "".join(f"{line}\n" for line in value)
    return str(value) if value is not False else ""


def _prefixes(path: str) -> Iterable[str]:
    """Every leading part of `path`, the longest first."""
    while path:
        yield path
        path = path.rpartition("/")[0]
