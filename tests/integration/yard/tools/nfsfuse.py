# ruff: noqa: ARG002 - the signatures are fusepy's
"""A read-only mount of a real NFSv4 export, through libnfs and FUSE, for machines whose kernel has no NFS client.

It is the yard's alone. As the kernel's client does, it shows a source that went away as an error of the read.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
import threading
from collections.abc import Callable

from fusepy import FUSE, FuseOSError, Operations

LIBRARY = ctypes.CDLL("libnfs.so.13")
LIBRARY.nfs_init_context.restype = ctypes.c_void_p
LIBRARY.nfs_get_error.restype = ctypes.c_char_p
LIBRARY.nfs_readdir.restype = ctypes.c_void_p
TIMEOUT_MS = 15_000
"""A kernel's client waits for ever and can be killed; who waits for FUSE cannot. Longer than the product's patience."""
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
    """One export; libnfs takes one request at a time.

    libnfs does not renew the client's lease: after a quiet minute the server has forgotten it, and libnfs says
    ERANGE for that; a server that was restarted is EIO. As a kernel would, it then says hello again and opens again
    what is open. Its own name for a client is made of the process id and the second: two nodes that mount side by side
    may have the same, and the server takes one for the other.
    """

    def __init__(self, host: str, export: str) -> None:
        self._lock = threading.RLock()
        self._host = host
        self._export = export
        self._life = 0
        self._open: dict[int, tuple[int, ctypes.c_void_p, str]] = {}
        self._next = 1
        self._hello()

    def _hello(self) -> None:
        self._life += 1
        self._context = ctypes.c_void_p(LIBRARY.nfs_init_context())
        LIBRARY.nfs_set_version(self._context, 4)
        LIBRARY.nfs_set_timeout(self._context, TIMEOUT_MS)
        name = f"{socket.gethostname()} {os.urandom(8).hex()}"
        LIBRARY.nfs4_set_client_name(self._context, name.encode())
        if LIBRARY.nfs_mount(self._context, self._host.encode(), self._export.encode()):
            sys.stderr.write(f"mount.nfs4: {LIBRARY.nfs_get_error(self._context).decode()}\n")
            raise FuseOSError(errno.EIO)

    def _call(self, work: Callable[[], int]) -> int:
        with self._lock:
            result = work()
            if result in (-errno.ERANGE, -errno.EIO):
                self._hello()
                result = work()
        if result < 0:
            raise FuseOSError(-result)
        return result

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        status = Stat()
        self._call(lambda: int(LIBRARY.nfs_lstat64(self._context, path.encode(), ctypes.byref(status))))
        return {f"st_{name}": getattr(status, name) for name in FUSE_FIELDS}

    def readdir(self, path: str, fh: int) -> list[str]:
        handle = ctypes.c_void_p()
        names = {".", ".."}
        with self._lock:
            self._call(lambda: int(LIBRARY.nfs_opendir(self._context, path.encode(), ctypes.byref(handle))))
            while entry := LIBRARY.nfs_readdir(self._context, handle):
                names.add(ctypes.cast(entry, ctypes.POINTER(Entry)).contents.name.decode())
            LIBRARY.nfs_closedir(self._context, handle)
        return sorted(names)

    def _handle(self, path: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(lambda: int(LIBRARY.nfs_open(self._context, path.encode(), 0, ctypes.byref(handle))))
        return handle

    def open(self, path: str, flags: int) -> int:
        with self._lock:
            self._next += 1
            handle = self._handle(path)
            self._open[self._next] = (self._life, handle, path)
            return self._next

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)

        def once() -> int:
            life, handle, name = self._open[fh]
            if life != self._life:
                handle = self._handle(name)
                self._open[fh] = (self._life, handle, name)
            place, length = ctypes.c_uint64(offset), ctypes.c_uint64(size)
            return int(LIBRARY.nfs_pread(self._context, handle, place, length, buffer))

        done = self._call(once)
        return buffer.raw[:done]

    def release(self, path: str, fh: int) -> int:
        with self._lock:
            life, handle, _ = self._open.pop(fh)
            if life == self._life:
                LIBRARY.nfs_close(self._context, handle)
        return 0

    def readlink(self, path: str) -> str:
        buffer = ctypes.create_string_buffer(4096)
        self._call(lambda: int(LIBRARY.nfs_readlink(self._context, path.encode(), buffer, 4096)))
        return buffer.value.decode()


if __name__ == "__main__":
    source, point = sys.argv[1:3]
    server, _, exported = source.partition(":")
    try:
        remote = Remote(server, exported)
    except FuseOSError:
        sys.exit(32)  # as mount(8); the reason is said
    options = {"ro": True, "fsname": source, "subtype": "nfs", "allow_other": True, "max_read": 131072}
    FUSE(remote, point, foreground=True, nothreads=False, **options)
