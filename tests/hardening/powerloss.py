"""What a disk may hold after the power went: recorded from the system calls of the real program, then played back.

`record` runs a program under strace and returns what it did to files below a folder. `Disk` keeps, for every file, what
an fsync has made durable and what is still on its way; `Disk.after_loss` makes one of the states that may be left:
of the data, any 512-byte sector old, new, or as any write in between left it; of a file's size, any since its fsync; of
the folders' changes, any prefix in their order, since file systems keep a journal of them. Sectors that were never
written read as zeros.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR_BYTES = 512
TRACED = (
    "openat,close,write,pwrite64,pwritev,pwritev2,writev,lseek,ftruncate,fallocate,fsync,fdatasync,"
    "rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,dup,dup2"
)
STRING_MAX = 1 << 24
CALL = re.compile(r"^(?P<name>\w+)\((?P<rest>.*)\)\s+= (?P<result>-?\d+)")
HEX = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
MARK = b"mark "


@dataclass(frozen=True)
class Op:
    """One system call that succeeded. `path` and `other` are below the folder."""

    kind: str
    path: str = ""
    other: str = ""
    descriptor: int = -1
    offset: int = -1
    data: bytes = b""
    size: int = 0
    create: bool = False
    truncate: bool = False


def record(argv: list[str], folder: Path, log: Path, env: dict[str, str]) -> list[Op]:
    """Run the program, which must exit 0; what it did below ``folder``, in order, and its marks."""
    strace = ["strace", "-f", "-xx", "-s", str(STRING_MAX), "-e", f"trace={TRACED}", "-o", str(log)]
    done = subprocess.run(
        [*strace, *argv], capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    return list(_below(_calls(log.read_text()), str(folder)))


def _calls(text: str) -> Iterator[tuple[str, str, int]]:
    """(name, arguments, result) in the order in which they ended."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[pid] = call.removesuffix("<unfinished ...>").rstrip()
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>\s*", call):
            call = begun.pop(pid, "") + call[resumed.end() :]
        if seen := CALL.match(call):
            yield seen["name"], seen["rest"], int(seen["result"])


def _strings(arguments: str) -> list[bytes]:
    return [bytes.fromhex(text.replace("\\x", "")) for text in HEX.findall(arguments)]


def _below(calls: Iterator[tuple[str, str, int]], folder: str) -> Iterator[Op]:
    paths: dict[int, str] = {}
    places: dict[int, int] = {}
    for name, arguments, result in calls:
        if result < 0:
            continue
        words = arguments.split(", ")
        names = [text.decode("utf-8", "replace") for text in _strings(arguments)] if "at" in name else []
        number = int(words[0]) if words[0].isdigit() else -1
        match name:
            case "openat":
                paths.pop(result, None)
                if names[0].startswith(folder):
                    paths[result], places[result] = names[0], 0
                    flags = words[2]
                    yield Op(
                        "open",
                        names[0],
                        descriptor=result,
                        create="O_CREAT" in flags,
                        truncate="O_TRUNC" in flags,
                    )
            case "close":
                paths.pop(number, None)
            case "write" | "writev" if number in paths:
                data = b"".join(_strings(arguments))[:result]
                yield Op("write", paths[number], descriptor=number, offset=places[number], data=data)
                places[number] += result
            case "write" if number == 1 and _strings(arguments)[0].startswith(MARK):
                yield Op("mark", _strings(arguments)[0].decode().strip())
            case "pwrite64" | "pwritev" | "pwritev2" if number in paths:
                data = b"".join(_strings(arguments))[:result]
                offset = int(words[-1] if name != "pwritev2" else words[-2])
                yield Op("write", paths[number], descriptor=number, offset=offset, data=data)
            case "lseek" if number in paths:
                places[number] = result
            case "ftruncate" if number in paths:
                yield Op("size", paths[number], descriptor=number, size=int(words[1]))
            case "fallocate" if number in paths:
                yield Op("grow", paths[number], descriptor=number, size=int(words[2]) + int(words[3]))
            case "fsync" | "fdatasync" if number in paths:
                yield Op("sync", paths[number], descriptor=number)
            case "rename" | "renameat" | "renameat2":
                old, new = (text.decode() for text in _strings(arguments))
                if new.startswith(folder):
                    yield Op("rename", old, new)
            case "unlink" | "unlinkat" | "rmdir":
                gone = _strings(arguments)[0].decode()
                if gone.startswith(folder):
                    yield Op("unlink", gone)
            case "mkdir" | "mkdirat":
                made = _strings(arguments)[0].decode()
                if made.startswith(folder):
                    yield Op("mkdir", made)
            case "dup" | "dup2":
                assert number not in paths, "a descriptor of ours is duplicated: not modelled"


@dataclass
class File:
    """One inode. `versions` are contents since the last fsync, the durable one first."""

    versions: list[bytes] = field(default_factory=lambda: [b""])

    @property
    def now(self) -> bytes:
        return self.versions[-1]

    def change(self, content: bytes) -> None:
        self.versions.append(content)


@dataclass
class Disk:
    """Durable names, and changes of names that are on their way: (folder, path, file or None for gone)."""

    durable: dict[str, File | None]
    pending: list[tuple[str, dict[str, File | None]]] = field(default_factory=list)
    open: dict[int, File | str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """Everything below it is durable. A value of None is a folder."""
        found: dict[str, File | None] = {str(folder): None}
        for path in folder.rglob("*"):
            found[str(path)] = None if path.is_dir() else File([path.read_bytes()])
        return cls(found)

    def names(self, changes: int | None = None) -> dict[str, File | None]:
        """With the first ``changes`` of what is pending; all of it without a number."""
        seen: dict[str, File | None] = dict(self.durable)
        for _, change in self.pending[:changes]:
            for path, entry in change.items():
                if entry is GONE:
                    seen.pop(path, None)
                else:
                    seen[path] = entry
        return seen

    def do(self, op: Op) -> None:
        """Play one call."""
        match op.kind:
            case "open":
                there = self.names()
                if op.path in there and there[op.path] is None:
                    self.open[op.descriptor] = op.path
                    return
                file = there.get(op.path)
                if file is None:
                    assert op.create, op
                    file = File()
                    self._change(op.path, {op.path: file})
                elif op.truncate:
                    file.change(b"")
                self.open[op.descriptor] = file
            case "write":
                file = self._file(op)
                content = file.now.ljust(op.offset, b"\0")
                file.change(content[: op.offset] + op.data + content[op.offset + len(op.data) :])
            case "size":
                file = self._file(op)
                file.change(file.now[: op.size].ljust(op.size, b"\0"))
            case "grow":
                file = self._file(op)
                file.change(file.now.ljust(op.size, b"\0"))
            case "sync":
                self._sync(op)
            case "rename":
                self._change(op.other, {op.other: self.names()[op.path], op.path: GONE})
            case "unlink":
                self._change(op.path, {op.path: GONE})
            case "mkdir":
                self._change(op.path, {op.path: None})

    def _file(self, op: Op) -> File:
        file = self.open[op.descriptor]
        assert isinstance(file, File), op
        return file

    def _change(self, path: str, change: dict[str, File | None]) -> None:
        self.pending.append((os.path.dirname(path), change))

    def _sync(self, op: Op) -> None:
        what = self.open[op.descriptor]
        if isinstance(what, File):
            what.versions = [what.now]
            return
        kept = []
        for folder, change in self.pending:  # of this folder only: nothing more is promised
            if folder == what:
                for path, entry in change.items():
                    if entry is GONE:
                        self.durable.pop(path, None)
                    else:
                        self.durable[path] = entry
            else:
                kept.append((folder, change))
        self.pending = kept

    def after_loss(self, chance: random.Random, how: str, target: Path, folder: Path) -> None:
        """Write one possible state to ``target``, as if it were ``folder``.

        `how`: `nothing` of what is pending, `everything`, `names` without data, `data` without names, or `any`.
        """
        count = {"nothing": 0, "data": 0, "everything": len(self.pending), "names": len(self.pending)}
        names = self.names(count.get(how, chance.randint(0, len(self.pending))))
        for path, file in sorted(names.items(), key=lambda item: item[0].count("/")):
            place = target / Path(path).relative_to(folder)
            if file is None:
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(_content(file, chance, how))


GONE = File([b"gone"])
"""In a change: the name is taken away."""


def _content(file: File, chance: random.Random, how: str) -> bytes:
    versions = file.versions
    if how in {"everything", "data"} or len(versions) == 1:
        return file.now
    if how == "nothing":
        return versions[0]
    if how == "names":
        return versions[0][: len(file.now)].ljust(len(file.now), b"\0")
    size = len(chance.choice(versions))
    padded = [version.ljust(size, b"\0") for version in versions]
    sectors = range(0, size, SECTOR_BYTES)
    return b"".join(chance.choice(padded)[at : at + SECTOR_BYTES] for at in sectors)[:size]


WAYS = ("nothing", "everything", "names", "data", "any")
