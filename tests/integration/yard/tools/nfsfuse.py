# ruff: noqa: ARG002 - the signatures are fusepy's
"""A read-only mount of a real NFSv4 export, through libnfs and FUSE, for machines whose kernel has no NFS client.

It is the yard's alone. As the kernel's client does, it shows a source that went away as an error of the read.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from fusepy import FUSE, FuseOSError, Operations

LIBRARY = ctypes.CDLL("libnfs.so.13")
LIBRARY.nfs_init_context.restype = ctypes.c_void_p
LIBRARY.nfs_get_error.restype = ctypes.c_char_p
LIBRARY.nfs_readdir.restype = ctypes.c_void_p
STAT_WORDS = (
    "dev ino mode nlink uid gid rdev size blksize blocks atime mtime ctime atime_ns mtime_ns ctime_ns used"
)
FUSE_FIELDS = ("mode", "nlink", "uid", "gid", "size", "atime", "mtime", "ctime", "ino")


class Stat(ctypes.Structure):
    """struct nfs_stat_64 of libnfs."""

    _fields_ = [(name, ctypes.c_uint64) for name in STAT_WORDS.split(" ")]


class Entry(ctypes.Structure):
    """The beginning of struct nfsdirent of libnfs."""

    _fields_ = [("next", ctypes.c_void_p), ("name", ctypes.c_char_p), ("inode", ctypes.c_uint64)]


class Remote(Operations):
    """One export; libnfs takes one request at a time."""

    def __init__(self, host: str, export: str) -> None:
        self._lock = threading.Lock()
        self._context = ctypes.c_void_p(LIBRARY.nfs_init_context())
        LIBRARY.nfs_set_version(self._context, 4)
        if LIBRARY.nfs_mount(self._context, host.encode(), export.encode()):
            raise SystemExit(f"mount.nfs4: {LIBRARY.nfs_get_error(self._context).decode()}")

    def _call(self, function: Callable[..., int], *arguments: Any) -> int:
        with self._lock:
            result = function(self._context, *arguments)
        if result < 0:
            raise FuseOSError(-result)
        return result

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        status = Stat()
        self._call(LIBRARY.nfs_lstat64, path.encode(), ctypes.byref(status))
        return {f"st_{name}": getattr(status, name) for name in FUSE_FIELDS}

    def readdir(self, path: str, fh: int) -> list[str]:
        handle = ctypes.c_void_p()
        self._call(LIBRARY.nfs_opendir, path.encode(), ctypes.byref(handle))
        names = {".", ".."}
        with self._lock:
            while entry := LIBRARY.nfs_readdir(self._context, handle):
                names.add(ctypes.cast(entry, ctypes.POINTER(Entry)).contents.name.decode())
            LIBRARY.nfs_closedir(self._context, handle)
        return sorted(names)

    def open(self, path: str, flags: int) -> int:
        handle = ctypes.c_void_p()
        self._call(LIBRARY.nfs_open, path.encode(), flags & 3, ctypes.byref(handle))
        return int(handle.value or 0)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        done = self._call(
            LIBRARY.nfs_pread, ctypes.c_void_p(fh), ctypes.c_uint64(offset), ctypes.c_uint64(size), buffer
        )
        return buffer.raw[:done]

    def release(self, path: str, fh: int) -> int:
        self._call(LIBRARY.nfs_close, ctypes.c_void_p(fh))
        return 0

    def readlink(self, path: str) -> str:
        buffer = ctypes.create_string_buffer(4096)
        self._call(LIBRARY.nfs_readlink, path.encode(), buffer, 4096)
        return buffer.value.decode()


if __name__ == "__main__":
    source, point = sys.argv[1:3]
    server, _, exported = source.partition(":")
    remote = Remote(server, exported)
    options = {"ro": True, "fsname": source, "subtype": "nfs", "allow_other": True, "max_read": 131072}
    FUSE(remote, point, foreground=True, nothreads=False, **options)
