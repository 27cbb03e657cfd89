"""Direct file I/O: aligned buffers, whole reads and writes, nothing left in the page cache."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

ALIGN_BYTES: Final = 4096
U8 = NDArray[np.uint8]


def aligned(size: int) -> U8:
    """uint8[size] at a page boundary, zeroed."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=np.uint8)[:size]


@dataclass(frozen=True, slots=True)
class DirectFile:
    """An open descriptor. direct: whether the page cache is bypassed; a file system that refuses O_DIRECT is
    read buffered and told to forget what was read.
    """

    descriptor: int
    path: Path
    direct: bool

    def close(self) -> None:
        """Idempotent use is the owner's business."""
        os.close(self.descriptor)

    def read_into(self, buffer: U8, offset: int) -> int:
        """Fills `buffer` (aligned start and length) from an aligned offset; returns bytes read, fewer only at
        the end of the file.
        """
        done = 0
        while done < len(buffer):
            got = os.preadv(self.descriptor, [buffer.data[done:]], offset + done)
            done += got
            if got == 0 or done % ALIGN_BYTES:
                break
        if not self.direct:
            os.posix_fadvise(self.descriptor, offset, len(buffer), os.POSIX_FADV_DONTNEED)
        return done

    def write_all(self, buffer: U8, offset: int) -> None:
        """Writes all of `buffer` (aligned) at an aligned offset."""
        done = 0
        while done < len(buffer):
            done += os.pwritev(self.descriptor, [buffer.data[done:]], offset + done)


def open_direct(path: Path, flags: int, mode: int = 0o644) -> DirectFile:
    """Opens with O_DIRECT where the file system has it. Raises OSError as open(2) does."""
    try:
        return DirectFile(os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, mode), path, True)
    except OSError as wrong:
        if wrong.errno != errno.EINVAL:
            raise
    return DirectFile(os.open(path, flags | os.O_CLOEXEC, mode), path, False)
