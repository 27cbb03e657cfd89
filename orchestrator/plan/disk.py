"""The disk ledger: what each node's disk holds at its peak, over the whole life cycle. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.model.profile import Profile
from orchestrator.plan.geometry import Geometry
from orchestrator.plan.judge import Contents
from orchestrator.plan.ledger import GB, GIB, padded_shape
from orchestrator.plan.tensors import Rule, weights

IMAGE_BYTES = 33 * GB
"""Engine image, unpacked: the published community image; ours is smaller."""
BUILD_CACHE_BYTES = 40 * GB
"""Layers and wheels that a build leaves on the node that builds, until pruned."""
LOG_BYTES = GIB
"""Upper bound of the rotated logs of the kept starts of a rank."""
SPARE_BYTES = 20 * GB
"""Kept free: a full NVMe stalls writes, and the node's own system lives on it."""
TABLES_PART = "Engram tables"
DiskVerdict = Literal["fits", "unknown", "does not fit"]
CHECKPOINT, IMAGE, CACHE = "checkpoint", "engine image", "build cache"
TABLES, SLICES, LOGS = "packed Engram tables", "weight slices", "logs"


@dataclass(frozen=True, slots=True)
class Volume:
    """A filesystem of a node, by a path on it. Equal `device` numbers: the same filesystem."""

    path: str
    free_bytes: int | None
    """None: the node was not looked at."""
    device: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """A node's disks. `held_bytes` of the files below are already there (by name), so they need no more room."""

    node: str
    root: Volume
    """Of sparkyard's own folder."""
    has_checkpoint: bool
    """The full checkpoint lies, or will lie, on this node."""
    builds_image: bool = False
    held_bytes: tuple[tuple[str, int], ...] = ()
    elsewhere: Mapping[str, Volume] = field(default_factory=dict)
    """Files that do not lie below the root, by name."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One thing on the disk. `temporary_bytes` are needed only while it is made."""

    name: str
    bytes: int
    temporary_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeDisk:
    """One filesystem of a node, its files in the order in which `up` makes them."""

    node: str
    free_bytes: int | None
    files: tuple[Stored, ...]
    path: str = ""

    @property
    def peak_bytes(self) -> int:
        """The most that is needed at once: what is kept so far plus what a step needs while it runs."""
        kept = peak = 0
        for file in self.files:
            peak = max(peak, kept + file.bytes + file.temporary_bytes)
            kept += file.bytes
        return peak

    @property
    def margin_bytes(self) -> int | None:
        """Free after the peak and the spare; None when the node was not looked at."""
        return None if self.free_bytes is None else self.free_bytes - self.peak_bytes - SPARE_BYTES

    @property
    def verdict(self) -> DiskVerdict:
        """Whether the peak fits; what is there already and needs no more room always does."""
        if self.margin_bytes is None:
            return "unknown"
        return "fits" if self.margin_bytes >= 0 or self.peak_bytes <= LOG_BYTES else "does not fit"


def disk_ledger(
    profile: Profile, rooms: Sequence[Room], contents: Contents, rules: tuple[Rule, ...]
) -> tuple[NodeDisk, ...]:
    """One entry a filesystem of each node, in the order given (rank 0 first)."""
    held = weights(contents.tensors, rules, padded_shape(profile, Geometry()), tables_in_memory=False)
    tp = profile.parallel.tp
    tables = sum(part.stored_bytes for part in held.parts if part.part == TABLES_PART)
    slices = sum(
        part.stored_bytes if part.replicated else -(-part.stored_bytes // tp)
        for part in held.parts
        if part.part != TABLES_PART
    )
    slices += max(0, contents.total_bytes - held.listed_bytes)
    packed = -(-tables // tp) if profile.engram.mode == "disk" else 0
    made = [
        Stored(LOGS, LOG_BYTES),
        Stored(TABLES, packed),
        Stored(SLICES, slices),
    ]
    return tuple(
        found
        for room in rooms
        for found in _node(room, [*_first(profile, room, contents.total_bytes, tp), *made])
    )


def _first(profile: Profile, room: Room, checkpoint: int, tp: int) -> list[Stored]:
    """What is there before the packs: the checkpoint, and the image with what its way to all nodes takes."""
    found = [Stored(CHECKPOINT, checkpoint if room.has_checkpoint else 0)]
    if profile.engine.runtime != "docker":
        return found
    if room.builds_image:
        # the head keeps a published copy of the image until all have it
        found.append(Stored(CACHE, BUILD_CACHE_BYTES))
        return [*found, Stored(IMAGE, IMAGE_BYTES, IMAGE_BYTES if tp > 1 else 0)]
    # a layer's download lies beside its unpacked files until it is done
    return [*found, Stored(IMAGE, IMAGE_BYTES, IMAGE_BYTES)]


def _node(room: Room, files: Sequence[Stored]) -> list[NodeDisk]:
    """The files by the filesystem that they lie on."""
    there = dict(room.held_bytes)
    disks: dict[int, tuple[Volume, list[Stored]]] = {}
    for file in files:
        volume = room.elsewhere.get(file.name) or room.root
        if not file.bytes:
            continue
        if volume.device == room.root.device:
            volume = room.root
        lacking = max(0, file.bytes - there.get(file.name, 0))
        temporary = file.temporary_bytes if lacking else 0
        disks.setdefault(volume.device, (volume, []))[1].append(Stored(file.name, lacking, temporary))
    return [
        NodeDisk(room.node, volume.free_bytes, tuple(stored), volume.path)
        for volume, stored in disks.values()
    ]


def as_json(nodes: Sequence[NodeDisk]) -> dict[str, Any]:
    """The disk ledger as `plan --json` shows it."""
    verdicts = {node.verdict for node in nodes}
    worst = next((found for found in ("does not fit", "unknown") if found in verdicts), "fits")
    return {
        "verdict": worst,
        "nodes": [
            {
                "node": node.node,
                "path": node.path,
                "verdict": node.verdict,
                "free_bytes": node.free_bytes,
                "peak_bytes": node.peak_bytes,
                "margin_bytes": node.margin_bytes,
                "files": [
                    {"name": file.name, "bytes": file.bytes, "temporary_bytes": file.temporary_bytes}
                    for file in node.files
                ],
            }
            for node in nodes
        ],
    }
