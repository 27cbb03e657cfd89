"""`python -m sparkyard_engine.slices.pack`: writes one rank's slice store, a tensor at a time."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkyard_engine import padding
from sparkyard_engine.engram.status import JobStatus, State
from sparkyard_engine.files import read_json, write_json
from sparkyard_engine.slices.cut import Cut, Piece, cut
from sparkyard_engine.slices.manifest import FILE, LIMIT_BYTES, Entry, Identity, Manifest, SliceError, load

INDEX = "model.safetensors.index.json"
CONFIG_LIMIT_BYTES = 16 << 20
STATUS_PERIOD_S = 0.5
SPARE_BYTES = 1 << 30
NOTHING = Piece(0, 0, 0)  # of a rank that has only padding
EXIT_FINE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Job:
    """One pack."""

    checkpoint: Path
    identity: Identity
    output: Path
    status: Path | None


def main(arguments: Sequence[str]) -> int:
    """Pack as the command line says; a store that is already there is left alone."""
    parser = argparse.ArgumentParser(prog="sparkyard_engine.slices.pack", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--padded-heads", type=int, default=0, help="num_attention_heads after padding")
    parser.add_argument("--padded-groups", type=int, default=0, help="o_groups after padding")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--status", type=Path)
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        shapes = (
            {"num_attention_heads": asked.padded_heads, "o_groups": asked.padded_groups}
            if asked.padded_heads
            else {}
        )
        digest = hashlib.sha256((asked.checkpoint / INDEX).read_bytes()).hexdigest()
        identity = Identity(asked.revision, digest, asked.tp, asked.rank, shapes)
        job = Job(asked.checkpoint, identity, asked.output, asked.status)
        size = pack(job)
    except (SliceError, padding.PaddingError) as error:
        return _fail(asked.status, str(error), EXIT_FAILED)
    except OSError as error:
        return _fail(asked.status, f"{error.filename or asked.output}: {error.strerror}", EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail(asked.status, "interrupted", EXIT_INTERRUPTED)
    sys.stdout.write(f"{asked.output}: {size} B in slice store {identity.store_id[:16]}\n")
    return EXIT_FINE


def pack(job: Job) -> int:
    """Write the store unless it is there; its bytes. Raises SliceError, PaddingError, OSError."""
    try:
        found = load(job.output, job.identity)
    except SliceError:
        pass
    else:
        _report(job, found.bytes, found.bytes, "done", "already there")
        return found.bytes
    if (job.output / FILE).exists():
        raise SliceError(f"{job.output}: holds another store; remove it or pack to another folder")
    partial = job.output.with_name(f".{job.output.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with (partial / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SliceError(f"{partial}: another pack runs here; wait for it or end it") from None
        manifest = _write(job, partial)
        write_json(partial / FILE, manifest.value())
        (partial / ".lock").unlink()
        if job.output.is_dir():
            job.output.rmdir()  # only an empty folder gives way
        partial.replace(job.output)
    _report(job, manifest.bytes, manifest.bytes, "done", "")
    return manifest.bytes


def plan_of(checkpoint: Path, tp: int, padded: dict[str, int]) -> padding.Plan:
    """The padding plan for the checkpoint's own shapes. Raises PaddingError, SliceError."""
    config = read_json(checkpoint / "config.json", CONFIG_LIMIT_BYTES)
    if config is None:
        raise SliceError(f"{checkpoint / 'config.json'}: missing, or no JSON object")
    inner = config.get("text_config")
    config = {**(inner if isinstance(inner, dict) else {}), **config}
    try:
        heads, groups = int(config["num_attention_heads"]), int(config["o_groups"])
    except (KeyError, TypeError, ValueError) as error:
        raise SliceError(f"{checkpoint / 'config.json'}: {error} is missing or no number") from error
    placement = padding.place(
        heads=heads,
        groups=groups,
        padded_heads=padded.get("num_attention_heads", heads),
        padded_groups=padded.get("o_groups", groups),
        tp=tp,
    )
    return padding.Plan(padding.rules(), placement)


def _write(job: Job, folder: Path) -> Manifest:
    from safetensors import safe_open

    plan = plan_of(job.checkpoint, job.identity.tp, dict(job.identity.padding))
    index = read_json(job.checkpoint / INDEX, LIMIT_BYTES)
    names = (index or {}).get("weight_map")
    if not isinstance(names, dict):
        raise SliceError(f"{job.checkpoint / INDEX}: no weight_map")
    shards = sorted(set(names.values()))
    cuts = {shard: _cuts(job, plan, shard) for shard in shards}
    total = sum(_stored_bytes(made, size) for found in cuts.values() for _, made, size in found)
    free = shutil.disk_usage(folder).free
    if free < total + SPARE_BYTES:
        raise SliceError(f"{folder}: the slices take {total} B, {free} B are free")
    entries: list[Entry] = []
    files: dict[str, int] = {}
    progress = _Progress(job, total)
    for number, shard in enumerate(shards):
        if not cuts[shard]:
            continue
        name = f"slices-{number:05d}.bin"
        with (
            safe_open(job.checkpoint / shard, framework="pt") as source,
            (folder / name).open("wb") as target,
        ):
            for tensor, made, _ in cuts[shard]:
                taken = _take(source.get_slice(tensor), made)
                raw = memoryview(_bytes_of(taken))
                dtype = str(taken.dtype).removeprefix("torch.")
                entries.append(Entry(tensor, dtype, made, name, target.tell(), len(raw), zlib.crc32(raw)))
                target.write(raw)
                progress.advance(len(raw))
            target.flush()
            os.fsync(target.fileno())
            files[name] = target.tell()
            os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        _drop_cache(job.checkpoint / shard)
    return Manifest(job.identity.value(), tuple(entries), files)


def _cuts(job: Job, plan: padding.Plan, shard: str) -> list[tuple[str, Cut, int]]:
    """(name, cut, bytes an entry) of each tensor of a shard that this rank loads, in the shard's order."""
    path = job.checkpoint / shard
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= LIMIT_BYTES:
            raise SliceError(f"{path}: no safetensors header")
        header: dict[str, Any] = json.loads(file.read(length))
    found = []
    for name, entry in sorted(
        (item for item in header.items() if item[0] != "__metadata__"),
        key=lambda item: item[1]["data_offsets"],
    ):
        first, last = entry["data_offsets"]
        count = 1
        for size in entry["shape"]:
            count *= size
        made = cut(padding.rule_of(plan.rules, name), entry["shape"], plan.placement, job.identity.rank)
        if made is not None and count:
            found.append((name, made, (last - first) // count))
    return found


def _stored_bytes(made: Cut, entry_bytes: int) -> int:
    size = entry_bytes
    for extent in made.stored_shape:
        size *= extent
    return size


def _take(source: Any, made: Cut) -> Any:
    """The pieces of one tensor, joined; reads only them."""
    import torch

    if made.axis is None:
        return source[:] if len(made.shape) else source[...]
    parts = [
        source[piece.source : piece.source + piece.length]
        if made.axis == 0
        else source[:, piece.source : piece.source + piece.length]
        for piece in made.pieces or (NOTHING,)
    ]
    return (
        parts[0]
        if len(parts) == 1
        else torch.cat([_raw(part) for part in parts], made.axis).view(parts[0].dtype)
    )


def _raw(tensor: Any) -> Any:
    import torch

    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def _drop_cache(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class _Progress:
    def __init__(self, job: Job, total: int) -> None:
        self._job, self._total, self._done = job, total, 0
        self._start = self._last = time.monotonic()

    def advance(self, size: int) -> None:
        self._done += size
        now = time.monotonic()
        if now - self._last >= STATUS_PERIOD_S:
            self._last = now
            rate = self._done / (now - self._start)
            _report(self._job, self._done, self._total, "running", f"{rate / 1e9:.2f} GB/s")


def _report(job: Job, done: int, total: int, state: State, note: str) -> None:
    JobStatus(job.status, "bytes").write(state, done, total, note)


def _fail(status: Path | None, error: str, code: int) -> int:
    sys.stderr.write(f"slices: {error}\n")
    JobStatus(status, "bytes").write("failed", 0, 0, "", error)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
