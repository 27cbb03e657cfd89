"""What a boot reads: the full checkpoint, or each rank's own slices. Prints; asserts nothing about time.

    python -m tests.bench.boot_bytes [--json]

A lab of its own (three SSH nodes, real SGLang) boots three times through the real verbs: from the checkpoint, from
slices, and, with one rank's store stale and another's foreign, which `serve` has to refuse by name, from slices once
more when told to accept that: those two ranks take the checkpoint. Before each boot the checkpoint's
weights and the slices are written out and their page cache is dropped (`posix_fadvise`); then `mincore` counts the
pages of each file that are in memory, and the kernel's own account of each rank's processes (`/proc/PID/io`) says
what they read from the drive. Engram rows, which are read around the page cache while the first answers are made, are
taken off by the reader's counters. Code that the first boot had to fetch is in its figure too.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from orchestrator import verbs
from orchestrator.errors import Exit, SparkyardError
from orchestrator.lab import cycle, nodes
from orchestrator.lab.place import NODES, Place
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Event, Said, StageStarted
from orchestrator.model.profile import PluginSetting, Profile

_libc = ctypes.CDLL(None, use_errno=True)
MOST_READ = 1.05
"""Of the bytes owned."""


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


def say(event: Event) -> None:
    """Stages and warnings, on standard error."""
    match event:
        case StageStarted(title=title):
            sys.stderr.write(f"{title}\n")
        case Said(level=level, text=text) if level != "note":
            sys.stderr.write(f"{level}: {text}\n")
        case _:
            pass


def without_slices(profile: Profile) -> Profile:
    """The same, booted from the full checkpoint."""
    kept = tuple(
        each for each in profile.settings if not (isinstance(each, PluginSetting) and each.plugin == "slices")
    )
    return profile.model_copy(update={"settings": kept})


class Bench:
    """One lab, and the boots that are measured on it."""

    def __init__(self, place: Place, profile: Profile) -> None:
        self.place, self.profile = place, profile

    async def failures(self, profile: Profile, verb: str, ignore: tuple[str, ...] = ()) -> list[str]:
        """Run a verb; `NODE: message` of what it could not do."""
        session = verbs.Session(
            profile, load_cluster(self.place.cluster_file), say, strict_conformance=True, ignore=ignore
        )
        done = await verbs.converging(session, verb)
        if done.exit_code == Exit.FINE:
            return []
        return [f"{each['node']}: {each['message']}" for each in done.data["failures"]]

    async def verb(self, profile: Profile, verb: str, ignore: tuple[str, ...] = ()) -> None:
        """Run a verb. Raises SparkyardError when it fails."""
        if failures := await self.failures(profile, verb, ignore):
            raise SparkyardError(f"{verb}: {json.dumps(failures, indent=1)}")

    @property
    def weights(self) -> list[Path]:
        """The shards of the full checkpoint, those of the Engram tables too: they hold weights besides."""
        return sorted(self.place.checkpoint.glob("*.safetensors"))

    def stores(self) -> list[Path]:
        """Each rank's slice store."""
        found = []
        for name in NODES:
            (manifest,) = self.place.node(name).glob("slices/*/manifest.json")
            found.append(manifest.parent)
        return found

    def files(self) -> dict[str, list[Path]]:
        """What is evicted and looked at."""
        slices = [
            path
            for name in NODES
            for path in self.place.node(name).glob("slices/*/*")
            if path.suffix == ".bin"
        ]
        return {"checkpoint": self.weights, "slices": sorted(slices)}

    def folders(self) -> list[Path]:
        """Each rank's newest folder."""
        newest = []
        for name in NODES:
            found = list((self.place.node(name) / "ranks").iterdir())
            newest.append(max(found, key=lambda path: int(path.name.rsplit(".g", 1)[1].split(".")[0])))
        return newest

    async def boot(self, profile: Profile, ignore: tuple[str, ...] = ()) -> dict[str, Any]:
        """Evict, serve, look, stop."""
        left = {name: evict(paths) for name, paths in self.files().items()}
        await self.verb(profile, "serve", ignore)
        ranks = [rank_read(folder) for folder in self.folders()]
        after = {name: sum(resident_bytes(path) for path in paths) for name, paths in self.files().items()}
        await self.verb(profile, "stop")
        return {"ranks": ranks, "resident_before_bytes": left, "resident_after_bytes": after}


def rank_read(folder: Path) -> dict[str, Any]:
    """What one rank's processes read from the drive until now, and where its weights came from."""
    status = json.loads((folder / "status.json").read_text("utf-8"))
    proof = json.loads((folder / "proof.json").read_text("utf-8"))
    rows = json.loads((folder / "engram.json").read_text("utf-8"))["bytes_read"]
    guard = psutil.Process(status["guard_pid"])
    read = sum(each.io_counters().read_bytes for each in (guard, *guard.children(recursive=True)))
    weights = proof["weights"]
    return {
        "from": weights["from"],
        "note": weights["note"],
        "slice_bytes": weights["slice_bytes"],
        "read_bytes": read,
        "engram_bytes": rows,
        "weights_read_bytes": read - rows,
    }


def spoil(store: Path, key: str, value: Any) -> None:
    """Make the store one of another revision or rank, under the name that is looked for."""
    manifest = json.loads((store / "manifest.json").read_text("utf-8"))
    manifest["identity"][key] = value
    (store / "manifest.json").write_text(json.dumps(manifest), "utf-8")


async def measure(place: Place) -> dict[str, Any]:
    """The whole comparison; the lab is taken down at the end."""
    profile = load_profile("lab")
    bench = Bench(place, profile)
    try:
        await cycle.set_up(place, profile, say, None)
        for verb in ("build", "share", "pack"):
            await bench.verb(profile, verb)
        first = await bench.boot(without_slices(profile))
        second = await bench.boot(profile)
        owned = [sum(path.stat().st_size for path in store.glob("*.bin")) for store in bench.stores()]
        spoil(bench.stores()[1], "revision", "seed-6")
        spoil(bench.stores()[2], "rank", 0)
        refused = await bench.failures(profile, "serve")
        third = await bench.boot(profile, ignore=("stores",))
    finally:
        nodes.down(place)
    ratios = [
        round(rank["weights_read_bytes"] / size, 3) for rank, size in zip(second["ranks"], owned, strict=True)
    ]
    notes = [rank["note"] for rank in third["ranks"]]
    spoilt = {NODES[1]: "slices have revision seed-6", NODES[2]: "slices have rank 0, expected 2"}
    return {
        "schema": "sparkyard/boot-bytes/v2",
        "checkpoint_bytes": sum(path.stat().st_size for path in bench.weights),
        "owned_bytes": owned,
        "from_checkpoint": first,
        "from_slices": second,
        "read_of_owned": ratios,
        "refused": {
            "by_serve": refused,
            "stale": notes[1],
            "foreign": notes[2],
            "from": [rank["from"] for rank in third["ranks"]],
        },
        "holds": {
            "no_page_of_the_checkpoint": second["resident_after_bytes"]["checkpoint"] == 0,
            "reads_what_is_owned": max(ratios) <= MOST_READ,
            "refused_by_name": len(refused) == len(spoilt)
            and all(
                any(node in text and words in text for text in refused) for node, words in spoilt.items()
            ),
            "stale_named": "revision: wanted 'seed-7', found 'seed-6'" in notes[1],
            "foreign_named": "rank: wanted 2, found 0" in notes[2],
        },
    }


def main() -> int:
    """Exit 0: everything that shall hold holds; 1: something does not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="boot-bytes-"))
    try:
        result = asyncio.run(measure(Place(folder / "lab")))
    except SparkyardError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.json:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
    else:
        for key, value in result.items():
            sys.stdout.write(f"{key}: {value}\n")
    return 0 if all(result["holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
