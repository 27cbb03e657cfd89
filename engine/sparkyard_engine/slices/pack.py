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
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from sparkyard_engine import padding
from sparkyard_engine.engram.status import JobStatus, State
from sparkyard_engine.files import is_plain, read_json, sync_folder, write_json
from sparkyard_engine.slices.cut import Cut, Piece, cut
from sparkyard_engine.slices.manifest import FILE, LIMIT_BYTES, Entry, Identity, Manifest, SliceError, load

INDEX = "model.safetensors.index.json"
CONFIG_LIMIT_BYTES = 16 << 20
LOCK = ".lock"
STATUS_PERIOD_S = 0.5
SPARE_BYTES = 1 << 30
NOTHING = Piece(0, 0, 0)  # of a rank that has only padding
DTYPES = {  # safetensors → torch's name, bytes an entry
    "BF16": ("bfloat16", 2),
    "F16": ("float16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I8": ("int8", 1),
    "I16": ("int16", 2),
    "I32": ("int32", 4),
    "I64": ("int64", 8),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
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
    with (partial / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SliceError(f"{partial}: another pack runs here; wait for it or end it") from None
        for (
            left
        ) in partial.iterdir():  # of a run that was ended: nothing of it is used, nothing of it is published
            if left.name != LOCK:
                left.unlink()
        manifest = _write(job, partial)
        write_json(partial / FILE, manifest.value())
        (partial / LOCK).unlink()
        sync_folder(partial)  # its names first, then its own: a power loss leaves a whole folder or none
        if job.output.is_dir():
            job.output.rmdir()  # only an empty folder gives way
        partial.replace(job.output)
        sync_folder(job.output.parent)
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
    plan = plan_of(job.checkpoint, job.identity.tp, dict(job.identity.padding))
    index = read_json(job.checkpoint / INDEX, LIMIT_BYTES)
    names = (index or {}).get("weight_map")
    if not isinstance(names, dict) or not all(map(is_plain, names.values())):
        raise SliceError(f"{job.checkpoint / INDEX}: no weight_map of plain file names")
    shards = sorted(set(names.values()))
    cuts = {shard: _cuts(job, plan, shard) for shard in shards}
    total = sum(tensor.bytes for found in cuts.values() for tensor in found)
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
        source = np.memmap(job.checkpoint / shard, np.uint8, "r")
        with (folder / name).open("wb") as target:
            for tensor in cuts[shard]:
                raw = np.ascontiguousarray(_take(source, tensor)).reshape(-1).data
                place = target.tell()
                entries.append(
                    Entry(tensor.name, tensor.dtype, tensor.cut, name, place, len(raw), zlib.crc32(raw))
                )
                target.write(raw)
                progress.advance(len(raw))
            target.flush()
            os.fsync(target.fileno())
            files[name] = target.tell()
            os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        del source
        _drop_cache(job.checkpoint / shard)
    return Manifest(job.identity.value(), tuple(entries), files)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in its shard: torch's name of the dtype, bytes an entry, place of its first byte, and the rank's cut."""

    name: str
    dtype: str
    entry_bytes: int
    shape: tuple[int, ...]
    offset: int
    cut: Cut

    @property
    def bytes(self) -> int:
        return prod(self.cut.stored_shape) * self.entry_bytes


def _cuts(job: Job, plan: padding.Plan, shard: str) -> list[_Stored]:
    """The tensors of a shard of which this rank loads something, in the shard's order."""
    path = job.checkpoint / shard
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= LIMIT_BYTES:
            raise SliceError(f"{path}: no safetensors header")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            if not isinstance(header, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise SliceError(f"{path}: damaged header: {error}") from error
    header.pop("__metadata__", None)
    found = []
    try:
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            shape = tuple(int(size) for size in entry["shape"])
            dtype, entry_bytes = DTYPES[entry["dtype"]]
            made = cut(padding.rule_of(plan.rules, name), shape, plan.placement, job.identity.rank)
            if made is not None:
                place = 8 + length + int(entry["data_offsets"][0])
                found.append(_Stored(name, dtype, entry_bytes, shape, place, made))
    except (KeyError, TypeError, ValueError) as error:
        raise SliceError(f"{path}: damaged header: {error!r}") from error
    end = max((each.offset + prod(each.shape) * each.entry_bytes for each in found), default=0)
    if path.stat().st_size < end:
        raise SliceError(f"{path}: {path.stat().st_size} B, its header describes {end}: truncated")
    return found


def _take(source: Any, tensor: _Stored) -> Any:
    """uint8: the pieces of one tensor, joined along the axis; touches no other page of the shard."""
    size = prod(tensor.shape) * tensor.entry_bytes
    whole = source[tensor.offset : tensor.offset + size].reshape(*tensor.shape, tensor.entry_bytes)
    axis = tensor.cut.axis
    if axis is None:
        return whole
    parts = [
        whole[piece.source : piece.source + piece.length]
        if axis == 0
        else whole[:, piece.source : piece.source + piece.length]
        for piece in tensor.cut.pieces or (NOTHING,)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


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
