"""What a boot reads: the full checkpoint, or each rank's own slices. Prints; asserts nothing about time.

    PYTHONPATH=.:engine PYTHON_OF_THE_ENGINE tests/bench/boot_bytes.py [--json] [--hidden 512]

Three real ranks of SGLang load a V4.1-shaped checkpoint through the plug-in: first from the checkpoint, then from
slices. Before each boot every file is written out and its page cache dropped (`posix_fadvise`); after it `mincore`
counts the pages of each file that are in memory. A stale store and another rank's must be refused by name.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import io
import json
import mmap
import os
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import torch

from orchestrator.package import build_package
from sparkyard_engine.slices import pack
from sparkyard_engine.slices.manifest import Identity, SliceError
from sparkyard_engine.slices.manifest import load as load_manifest
from tests.engine.test_v41_ranks import PADDED, TP, load
from tests.engine.v41_small import Dims, config, tensors, write

_libc = ctypes.CDLL(None, use_errno=True)


def resident_bytes(path: Path) -> int:
    """Bytes of the file's pages that are in the page cache (mincore(2))."""
    size = path.stat().st_size
    if size == 0:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        start = (ctypes.c_char * size).from_buffer(mapped)
        pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        if _libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), pages) != 0:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
        del start
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def evict(paths: list[Path]) -> int:
    """Write the files out and drop their pages; what is still resident afterwards."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return sum(resident_bytes(path) for path in paths)


def boot(
    package: Path, folder: Path, model: Path, plugins: list[dict[str, Any]], files: dict[str, list[Path]]
) -> dict[str, Any]:
    """One boot: seconds, where each rank's weights came from, pages resident of each group of files after it."""
    left = {name: evict(paths) for name, paths in files.items()}
    start_s = time.monotonic()
    found = load(package, folder, model, plugins)
    return {
        "seconds": round(time.monotonic() - start_s, 1),
        "from": [each["proof"]["weights"]["from"] for each in found],
        "slice_bytes_read": [each["proof"]["weights"]["slice_bytes"] for each in found],
        "resident_before_bytes": left,
        "resident_after_bytes": {
            name: sum(resident_bytes(path) for path in paths) for name, paths in files.items()
        },
    }


def refusals(stores: list[Path], identities: list[Identity]) -> dict[str, str]:
    """What is said of a store of another revision and of another rank."""
    said = {}
    for kind, store, wanted in (
        ("foreign", stores[1], identities[0]),
        ("stale", stores[0], Identity("r2", identities[0].index_sha256, TP, 0, PADDED)),
    ):
        try:
            load_manifest(store, wanted)
        except SliceError as error:
            said[kind] = str(error)
    return said


def measure(work: Path, hidden: int) -> dict[str, Any]:
    """The whole comparison in a folder of its own."""
    dims = Dims(hidden=hidden, expert_inner=hidden // 2 // 96 * 96 or 96, q_lora=hidden // 2, vocabulary=4096)
    torch.manual_seed(11)
    model, package = work / "model", work / "package"
    made = tensors(dims, fp8=False)
    write(model, dims, made, config(dims))
    zipfile.ZipFile(io.BytesIO(build_package().content)).extractall(package)
    digest = hashlib.sha256((model / pack.INDEX).read_bytes()).hexdigest()
    identities = [Identity("r1", digest, TP, rank, PADDED) for rank in range(TP)]
    stores = [work / f"slices{rank}" for rank in range(TP)]
    owned = [
        pack.pack(pack.Job(model, identity, store, None))
        for identity, store in zip(identities, stores, strict=True)
    ]
    files = {
        "checkpoint": sorted(model.glob("*.safetensors")),
        "slices": sorted(path for store in stores for path in store.glob("*.bin")),
    }
    first = boot(package, work / "first", model, [{"padding": PADDED}] * TP, files)
    plugins = [{"padding": PADDED, "slices": {"store": str(store), "revision": "r1"}} for store in stores]
    second = boot(package, work / "second", model, plugins, files)
    main = sum(tensor.nbytes for name, tensor in made.items() if not name.startswith("mtp."))
    return {
        "schema": "sparkyard/boot-bytes/v1",
        "checkpoint_bytes": sum(path.stat().st_size for path in files["checkpoint"]),
        "main_model_bytes": main,
        "slice_store_bytes": owned,
        "from_checkpoint": first,
        "from_slices": second,
        "read_of_owned": [
            round(read / size, 3) for read, size in zip(second["slice_bytes_read"], owned, strict=True)
        ],
        "refused": refusals(stores, identities),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hidden", type=int, default=512)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="boot-bytes-", dir=os.environ.get("TMPDIR")) as folder:
        result = measure(Path(folder), asked.hidden)
    if asked.json:
        json.dump(result, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        for key, value in result.items():
            sys.stdout.write(f"{key}: {value}\n")
