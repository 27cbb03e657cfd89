"""The lab's folder and what is in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NODES = ("spark-1", "spark-2", "spark-3")


def state_folder() -> Path:
    """Where sparkyard keeps what belongs to this user: `${XDG_STATE_HOME:-~/.local/state}/sparkyard`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "sparkyard"


@dataclass(frozen=True, slots=True)
class Place:
    """Paths, and nothing else."""

    folder: Path

    @property
    def cluster_file(self) -> Path:
        """The lab's cluster file."""
        return self.folder / "cluster.yaml"

    @property
    def checkpoint(self) -> Path:
        """The generated checkpoint: lies with the head, as on real nodes."""
        return self.node(NODES[0]) / "checkpoint"

    @property
    def key(self) -> Path:
        """The controller's own key."""
        return self.folder / "id_ed25519"

    def node(self, name: str) -> Path:
        """One node's root folder."""
        return self.folder / "nodes" / name

    def server(self, name: str) -> Path:
        """The folder of one node's SSH server."""
        return self.folder / "sshd" / name


def lab_place() -> Place:
    """The one lab of this user."""
    return Place(state_folder() / "lab")
