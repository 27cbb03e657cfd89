"""What a verb wants, with everything that can be computed before any node is asked."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.frozen import identity
from orchestrator.model.profile import PluginSetting, Profile

STORE_FORMAT = 1
"""Version of the packed Engram format (docs/engram-store.md)."""
SLICE_FORMAT = 1
"""Version of the slice store (docs/formats.md)."""
PROOF_SEED = 20_260_101
PROOF_BLOCKS = 48
"""Blocks of 64 KiB that every node reads through the share: 3 MiB, a second on the slowest link seen."""


@dataclass(frozen=True, slots=True)
class Package:
    """The engine package: its SHA-256 and size."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Goal:
    """The inputs of every `decide`."""

    profile: Profile
    cluster: Cluster
    package: Package

    @property
    def ranked(self) -> tuple[Node, ...]:
        """Nodes in rank order; the first `tp` of them serve."""
        return self.cluster.ranked[: self.profile.parallel.tp]

    @property
    def head(self) -> Node:
        """Runs rank 0."""
        return self.cluster.node(self.cluster.head)

    @property
    def owner(self) -> Node:
        """Has the checkpoint's files."""
        return self.cluster.node(self.cluster.checkpoint.node) if self.cluster.checkpoint else self.head

    def port(self, node: Node, port: int) -> int:
        """A port of the profile on ``node``."""
        return port + node.port_offset

    def store(self, rank: int, index_sha256: str) -> str:
        """Store id of a rank's packed tables (docs/formats.md)."""
        return identity(
            {
                "format": STORE_FORMAT,
                "revision": self.profile.model.revision,
                "index_sha256": index_sha256,
                "tp": self.profile.parallel.tp,
                "rank": rank,
                "ownership": self.profile.engram.ownership,
            }
        )

    def slices(self, rank: int, index_sha256: str) -> str | None:
        """Store id of a rank's weight slices (docs/formats.md); None when the profile boots from the checkpoint."""
        settings = self.profile.settings
        if not any(isinstance(s, PluginSetting) and s.plugin == "slices" and s.value for s in settings):
            return None
        padding = self.profile.parallel.padding
        return identity(
            {
                "format": SLICE_FORMAT,
                "revision": self.profile.model.revision,
                "index_sha256": index_sha256,
                "tp": self.profile.parallel.tp,
                "rank": rank,
                "padding": padding.model_dump() if padding else {},
            }
        )

    def index_sha256(self, facts: ClusterFacts) -> str | None:
        """Digest of the checkpoint's index as its owner reads it."""
        seen = facts.get(self.owner.name)
        return seen.checkpoint.index_sha256 if seen and seen.checkpoint else None
