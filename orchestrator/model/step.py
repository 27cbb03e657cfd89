"""What can be done to a node, and what can be waited for. Closed sets of frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.model.facts import Phase


@dataclass(frozen=True, slots=True)
class PutBlob:
    """The controller sends a small file (the engine package) to one node over the agent's channel."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FetchBlob:
    """A node fetches a file from another node's fabric address."""

    digest: str
    size_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class InstallEngine:
    """Unpack the engine package that is already on the node."""

    digest: str


@dataclass(frozen=True, slots=True)
class BuildImage:
    """Build the engine image from the installed engine package. `content` is the digest of all inputs."""

    content: str
    engine: str
    base: str
    platform: str
    bound_s: float


@dataclass(frozen=True, slots=True)
class OfferImage:
    """Publish the image on this node's fast links for this run. Runs as a job, until its readers are done."""

    content: str
    addresses: tuple[str, ...]
    port: int
    readers: tuple[str, ...]
    step_bytes: int
    idle_s: float
    bound_s: float
    spec: str


@dataclass(frozen=True, slots=True)
class PullImage:
    """Get the image from the first of `sources` that answers, and pass it on to `readers` on `addresses`.

    A source is the list of its addresses, one a rail. Runs as a job: an interrupted controller joins it again.
    """

    content: str
    origin: str
    sources: tuple[tuple[str, ...], ...]
    addresses: tuple[str, ...]
    port: int
    readers: tuple[str, ...]
    idle_s: float
    bound_s: float
    spec: str


@dataclass(frozen=True, slots=True)
class StartFetch:
    """Start the job that brings the pinned revision of the checkpoint from the hub, or goes on with it."""

    repository: str
    revision: str
    path: str
    engine: str
    python: str
    image: str
    spec: str


@dataclass(frozen=True, slots=True)
class ExportCheckpoint:
    """Export the checkpoint at `path` read-only to the addresses `clients`, now and after a reboot."""

    path: str
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnexportCheckpoint:
    """Take the export back."""

    path: str


@dataclass(frozen=True, slots=True)
class DetachCheckpoint:
    """Unmount the checkpoint and forget it, now and after a reboot."""

    source: str


@dataclass(frozen=True, slots=True)
class AttachCheckpoint:
    """Make the checkpoint of another node readable here. The last three are for `nfs`: what to mount, and how."""

    mode: Literal["own", "same-host", "nfs"]
    source: str
    path: str
    server: str = ""
    folder: str = ""
    """Exported folder; empty: the one that `ExportCheckpoint` exports for `path`."""
    options: str = ""


@dataclass(frozen=True, slots=True)
class ProveCheckpoint:
    """Read the index and blocks at seeded places through the share, and record their digest."""

    index_sha256: str
    seed: int
    blocks: int


@dataclass(frozen=True, slots=True)
class StartPack:
    """Start the job that writes this rank's Engram rows, or its weight slices, to the node's own disk."""

    store: str
    revision: str
    tp: int
    rank: int
    ownership: str
    engine: str
    python: str
    spec: str
    image: str = ""
    """Content label of the image that it runs in; empty: `python` on the node itself."""
    what: Literal["tables", "slices"] = "tables"
    padded_heads: int = 0
    """Padded shapes, for slices; 0 without padding."""
    padded_groups: int = 0


@dataclass(frozen=True, slots=True)
class SetDesired:
    """Write the desired record."""

    deployment: str
    generation: int
    state: Literal["serving", "stopped", "maintenance"]
    profile: str
    why: str = ""
    only_if_serving: bool = False
    """Refused unless the record says serving: the watch goes on with a wish, it never has one."""


@dataclass(frozen=True, slots=True)
class StartRank:
    """Start one rank behind the guard."""

    deployment: str
    generation: int
    rank: int
    spec: str
    body: dict[str, Any]
    """The rank spec (docs/formats.md)."""
    engine: str
    python: str
    image: str = ""
    """Content label of the image that it runs in; empty: `python` on the node itself."""

    def __hash__(self) -> int:
        return hash((self.deployment, self.generation, self.rank, self.spec))


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Let the ranks that wait at the launch gate go on."""

    deployment: str
    generation: int
    port: int


@dataclass(frozen=True, slots=True)
class StopRank:
    """End one rank: SIGTERM, and SIGKILL of its whole tree after `grace_s`. Done when it is gone."""

    deployment: str
    generation: int
    rank: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class AskCanary:
    """One short generation; its success is written into the boot record."""

    deployment: str
    generation: int
    port: int
    model: str
    timeout_s: float
    key_file: str | None = None
    """On the head: the API key, where one is needed."""


@dataclass(frozen=True, slots=True)
class RunSmoke:
    """The smoke of the OpenAI API; its success is written into the boot record."""

    deployment: str
    generation: int
    port: int
    model: str
    timeout_s: float
    key_file: str | None = None
    """On the head: the API key, where one is needed."""


Action = (
    PutBlob
    | FetchBlob
    | InstallEngine
    | BuildImage
    | OfferImage
    | PullImage
    | StartFetch
    | ExportCheckpoint
    | UnexportCheckpoint
    | DetachCheckpoint
    | AttachCheckpoint
    | ProveCheckpoint
    | StartPack
    | SetDesired
    | StartRank
    | OpenGate
    | StopRank
    | AskCanary
    | RunSmoke
)


@dataclass(frozen=True, slots=True)
class PackDone:
    """The pack job has finished and its store is complete."""

    store: str
    what: Literal["tables", "slices"] = "tables"


@dataclass(frozen=True, slots=True)
class FetchDone:
    """The fetch job with this spec has finished: every file is here and right."""

    spec: str


@dataclass(frozen=True, slots=True)
class RankAt:
    """The rank has reached `phase` or a later one."""

    deployment: str
    generation: int
    rank: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class MemoryBack:
    """MemAvailable is at least this. Who began after the last boot of `deployment` is the first suspect otherwise."""

    available_bytes: int
    deployment: str = ""


Condition = PackDone | FetchDone | RankAt | MemoryBack


@dataclass(frozen=True, slots=True)
class Step:
    """One action on one node."""

    node: str
    action: Action
    why: str
    bound_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A condition on one node, with a deadline."""

    node: str
    until: Condition
    why: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that may run side by side, then waits that must all hold."""

    title: str
    steps: tuple[Step, ...] = ()
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A node's failure, as a value."""

    node: str
    kind: Literal["unreachable", "refused", "failed", "timeout", "protocol"]
    message: str
    remedy: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """The goal cannot be reached from these facts."""

    failures: tuple[Failure, ...]


Decision = Stage | Blocked | None
"""None: the goal is reached."""
