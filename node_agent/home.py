"""Where things lie below sparkyard's own folder on a node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """Paths, and nothing else."""

    root: Path
    node: str
    agent: str
    recorded: Path | None = None

    @property
    def blobs(self) -> Path:
        """Verified files, named by their SHA-256."""
        return self.root / "blobs"

    @property
    def engines(self) -> Path:
        """Unpacked engine packages, one folder a digest."""
        return self.root / "engine"

    @property
    def packs(self) -> Path:
        """Packed Engram stores, one folder a store id."""
        return self.root / "packs"

    @property
    def slices(self) -> Path:
        """Slice stores: the bytes of the checkpoint that a rank loads, one folder a store id."""
        return self.root / "slices"

    @property
    def jobs(self) -> Path:
        """Long work: one folder a job."""
        return self.root / "jobs"

    @property
    def ranks(self) -> Path:
        """One folder for each start of a rank."""
        return self.root / "ranks"

    @property
    def boots(self) -> Path:
        """Boot records."""
        return self.root / "boots"

    @property
    def share(self) -> Path:
        """The link or mount point through which this node reads the checkpoint, and its records."""
        return self.root / "share"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint as this node reads it."""
        return self.share / "checkpoint"

    @property
    def desired(self) -> Path:
        """The desired record."""
        return self.root / "desired.json"

    @property
    def lease(self) -> Path:
        """Locked by the agent of the controller that may act."""
        return self.root / "lease.json"

    def rank_folder(self, deployment: str, generation: int, rank: int) -> Path:
        """The folder of one start of one rank."""
        return self.ranks / f"{deployment}.g{generation}.r{rank}"

    def boot_file(self, deployment: str, generation: int) -> Path:
        """The record of one boot."""
        return self.boots / f"{deployment}.g{generation}.json"
