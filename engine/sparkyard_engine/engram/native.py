"""Builds and loads the native half of the store (engine/native, C++17).

It is compiled on the machine that runs it, once: the result is kept in a cache folder under a name that is
the digest of the sources, the compiler's flags and the machine. Without a compiler everything runs on the
Python twin, and `missing()` says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram.page import PageSeal

U8 = NDArray[np.uint8]

FLAGS: Final = ("-std=c++17", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
COMPILERS: Final = ("c++", "g++", "clang++")
COMPILE_TIMEOUT_S: Final = 120.0  # 3 s on a desktop core; a loaded node is slower
CACHE_VARIABLE: Final = (
    "SPARKYARD_NATIVE_CACHE"  # a folder; an image sets it to one that it filled while it was built
)
DISABLE_VARIABLE: Final = "SPARKYARD_NATIVE"  # "off": the Python twin even where a compiler exists
MAIN_SOURCE: Final = "engram.cpp"


class NativeUnavailableError(Exception):
    """There is no native library here; the text says why."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library; `lib` for the readers."""

    lib: Any
    path: Path

    def lay_out(self, pages: U8, weight: U8, scale: U8, seal: PageSeal, first_page: int) -> None:
        """Interleaves rows uint8[n, 256] and uint8[n, 8] into sealed pages uint8[⌈n / 15⌉, 4096]."""
        self.lib.sy_lay_out(
            address(pages),
            address(weight),
            address(scale),
            len(weight),
            seal.store_id,
            seal.layer,
            first_page,
        )

    def valid(self, pages: U8, seal: PageSeal, first_page: int) -> NDArray[np.bool_]:
        """bool[n]: whether each of n consecutive pages is sound."""
        good = np.empty(len(pages), dtype=np.uint8)
        self.lib.sy_valid(address(pages), len(pages), seal.store_id, seal.layer, first_page, address(good))
        return good.astype(np.bool_)

    def crc32c(self, data: bytes) -> int:
        """CRC32C of one byte string."""
        register: int = self.lib.sy_crc32c(0xFFFFFFFF, data, len(data))
        return register ^ 0xFFFFFFFF


def address(array: NDArray[Any]) -> int:
    """Where a C-contiguous array starts."""
    if not array.flags.c_contiguous:
        raise ValueError("the native library takes contiguous arrays only")
    return array.ctypes.data


def sources() -> Path:
    """The folder of the C++ sources: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "native", package.parent / "native"):
        if (folder / MAIN_SOURCE).is_file():
            return folder
    raise NativeUnavailableError(f"the C++ sources are missing beside {package}")


def _cache_folder() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sparkyard" / "native"


def _digest(folder: Path) -> str:
    state = hashlib.sha256(repr((FLAGS, platform.machine())).encode())
    for path in sorted(folder.glob("*.[ch]pp")):
        state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()[:32]


def build() -> Path:
    """The shared library's path, compiled if need be. Raises NativeUnavailableError."""
    folder = sources()
    name = f"engram-{_digest(folder)}.so"
    target = _cache_folder() / name
    if target.is_file():
        return target
    compiler = os.environ.get("CXX") or next(
        (found for name in COMPILERS if (found := shutil.which(name))), None
    )
    if compiler is None:
        raise NativeUnavailableError(f"no C++ compiler ({', '.join(COMPILERS)}) and no {target}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=target.parent, suffix=".so")
    except OSError:
        target = Path(tempfile.mkdtemp(prefix="sparkyard-native-")) / name
        handle, partial = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.fchmod(handle, 0o755)  # made for its owner alone: in an image other accounts load it
    os.close(handle)
    try:
        subprocess.run(
            [compiler, *FLAGS, str(folder / MAIN_SOURCE), "-o", partial],
            check=True,
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
        )
        Path(partial).replace(target)
    except subprocess.CalledProcessError as wrong:
        first = (wrong.stderr or "").strip().splitlines()[:1]
        raise NativeUnavailableError(f"{compiler} failed: {' '.join(first)}") from None
    except (OSError, subprocess.TimeoutExpired) as wrong:
        raise NativeUnavailableError(f"{compiler}: {wrong}") from None
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


@cache
def _load() -> Library | str:
    if os.environ.get(DISABLE_VARIABLE) == "off":
        return f"{DISABLE_VARIABLE}=off"
    try:
        path = build()
        lib = ctypes.CDLL(str(path))
    except (NativeUnavailableError, OSError) as wrong:
        return str(wrong)
    _declare(lib)
    return Library(lib, path)


def library() -> Library | None:
    """The loaded library, or None."""
    loaded = _load()
    return None if isinstance(loaded, str) else loaded


def missing() -> str | None:
    """Why there is no native library; None when there is one."""
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def _declare(lib: Any) -> None:
    pointer, u64, u32, i32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int32
    lib.sy_crc32c.argtypes, lib.sy_crc32c.restype = [u32, ctypes.c_char_p, u64], u32
    lib.sy_lay_out.argtypes = [pointer, pointer, pointer, u64, ctypes.c_char_p, u32, u64]
    lib.sy_valid.argtypes = [pointer, u64, ctypes.c_char_p, u32, u64, pointer]
    lib.sy_reader_open.argtypes = [i32, pointer, u64, ctypes.c_char_p, u32, u64, u32, u32, pointer]
    lib.sy_reader_open.restype = pointer
    lib.sy_reader_close.argtypes = [pointer]
    lib.sy_reader_read.argtypes = [pointer, pointer, u64, i32, i32, pointer, pointer, pointer, pointer]
    lib.sy_reader_read.restype = i32
    lib.sy_reader_fault.argtypes = [pointer, pointer, pointer]
    lib.sy_reader_totals.argtypes = [pointer, pointer]
    lib.sy_lookup.argtypes = [pointer]
    for function in (lib.sy_lay_out, lib.sy_valid, lib.sy_reader_close, lib.sy_reader_fault, lib.sy_lookup):
        function.restype = None
    lib.sy_reader_totals.restype = None
