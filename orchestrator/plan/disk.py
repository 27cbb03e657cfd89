"""The disk ledger: what each node's disk holds at its peak, over the whole life cycle. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Room:
    """A node's disk. `held_bytes` of the files below are already there (by name), so they need no more room."""

    node: str
    free_bytes: int
    has_checkpoint: bool
    """The full checkpoint lies, or will lie, on this disk."""
    builds_image: bool = False
    held_bytes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """One thing on the disk. `temporary_bytes` are needed only while it is made."""

    name: str
    bytes: int
    temporary_bytes: int


@dataclass(frozen=True, slots=True)
class NodeDisk:
    """One node, its files in the order in which `up` makes them."""

    node: str
    free_bytes: int
    files: tuple[Stored, ...]

    @property
    def peak_bytes(self) -> int:
        """The most that is needed at once: what is kept so far plus what a step needs while it runs."""
        kept = peak = 0
        for file in self.files:
            peak = max(peak, kept + file.bytes + file.temporary_bytes)
            kept += file.bytes
        return peak

    @property
    def margin_bytes(self) -> int:
        """Free after the peak and the spare."""
        return self.free_bytes - self.peak_bytes - SPARE_BYTES

    @property
    def verdict(self) -> Literal["fits", "does not fit"]:
        """Whether the peak fits."""
        return "fits" if self.margin_bytes >= 0 else "does not fit"


def disk_ledger(
    profile: Profile, rooms: Sequence[Room], contents: Contents, rules: tuple[Rule, ...]
) -> tuple[NodeDisk, ...]:
    """One entry a node, in the order given (rank 0 first)."""
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
    return tuple(_node(profile, room, contents.total_bytes, packed, slices) for room in rooms)


def _node(profile: Profile, room: Room, checkpoint: int, packed: int, slices: int) -> NodeDisk:
    there = dict(room.held_bytes)
    docker = profile.engine.runtime == "docker"
    files = [
        Stored("checkpoint", checkpoint if room.has_checkpoint else 0, 0),
        Stored("engine image", IMAGE_BYTES if docker else 0, 0),
        Stored("build cache", BUILD_CACHE_BYTES if docker and room.builds_image else 0, 0),
        Stored("packed Engram tables", packed, 0),
        Stored("weight slices", slices, 0),
        Stored("logs", LOG_BYTES, 0),
    ]
    return NodeDisk(
        room.node,
        room.free_bytes,
        tuple(
            Stored(file.name, max(0, file.bytes - there.get(file.name, 0)), file.temporary_bytes)
            for file in files
            if file.bytes
        ),
    )


def as_json(nodes: Sequence[NodeDisk]) -> dict[str, Any]:
    """The disk ledger as `plan --json` shows it."""
    return {
        "verdict": "fits" if all(node.verdict == "fits" for node in nodes) else "does not fit",
        "nodes": [
            {
                "node": node.node,
                "verdict": node.verdict,
                "free_bytes": node.free_bytes,
                "peak_bytes": node.peak_bytes,
                "margin_bytes": node.margin_bytes,
                "files": [{"name": file.name, "bytes": file.bytes} for file in node.files],
            }
            for node in nodes
        ],
    }
