"""What a node is known to be. Comes from the agent as JSON and is checked here; nothing in it is trusted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from orchestrator.model.frozen import Frozen

Text = Annotated[str, StringConstraints(max_length=8192)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Phase = Literal["starting", "joined", "loading", "kv", "graphs", "ready", "draining", "ended"]
PHASES: tuple[Phase, ...] = ("starting", "joined", "loading", "kv", "graphs", "ready", "draining", "ended")


class Host(Frozen):
    """The machine and its kernel."""

    hostname: Text
    kernel: Text
    machine: Text
    python: Text
    cpus: int = Field(ge=1)
    user: Text


class MemoryFacts(Frozen):
    """From /proc/meminfo."""

    total_bytes: int = Field(ge=0)
    available_bytes: int = Field(ge=0)


class Disk(Frozen):
    """The filesystem that holds `path`."""

    path: Text
    filesystem: Text
    total_bytes: int = Field(ge=0)
    free_bytes: int = Field(ge=0)
    device: int = 0
    """st_dev: paths with the same number share their room."""


class Listener(Frozen):
    """A TCP port that somebody listens on."""

    port: int = Field(ge=1, le=65535)
    address: Text
    pid: int | None = None
    process: Text | None = None


class Desired(Frozen):
    """What this node shall do."""

    deployment: Text
    generation: int = Field(ge=0)
    state: Literal["serving", "stopped", "maintenance"]
    profile: Text
    why: Text = ""
    """Why it rests, when it was not a person who said so."""


class CheckpointFacts(Frozen):
    """The checkpoint as this node reads it."""

    path: Text
    index_sha256: Digest | None = None
    shards: int = 0
    total_bytes: int = 0
    problems: tuple[Text, ...] = ()
    """What is missing, truncated or unreadable."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The shape keys of `config.json` that a plan needs."""


class ShareFacts(Frozen):
    """How this node reaches the checkpoint."""

    mode: Literal["own", "same-host", "nfs"]
    source: Text
    path: Text
    server: Text = ""
    """Address of the source by which it is mounted; empty where nothing is."""
    asked: Text = ""
    """Options of mount(8) that it was mounted with; empty where nothing is."""
    problem: Text = ""
    """Why the mount cannot be read; empty when it can."""
    options: Text = ""
    """What the kernel says of the mount."""
    fallbacks: tuple[Text, ...] = ()
    """What the mount became without a word, against what was asked for."""


class ProofFacts(Frozen):
    """What this node read back from the checkpoint, to be compared with the other nodes."""

    index_sha256: Digest
    seed: int
    blocks: int
    blocks_sha256: Digest | None = None
    """None in a prediction: the digest of an output cannot be known before."""
    bytes_read: int = 0
    bytes_per_s: float = 0.0


class StoreFacts(Frozen):
    """One packed store: Engram tables, or weight slices."""

    store: Digest
    kind: Literal["tables", "slices"] = "tables"
    path: Text
    complete: bool
    bytes: int = Field(default=0, ge=0)


class JobFacts(Frozen):
    """Long work on the node."""

    id: Text
    kind: Text
    spec: Digest
    state: Literal["running", "done", "failed", "lost"]
    done: int = 0
    total: int = 0
    unit: Text = ""
    written_bytes: int = 0
    """What the ended job wrote to disk, by the kernel's count."""
    error: Text = ""
    log_tail: tuple[Text, ...] = ()


class RankFacts(Frozen):
    """One rank that is here, or whose end is still recorded."""

    deployment: Text
    generation: int
    rank: int
    spec: Digest
    alive: bool
    phase: Phase
    engine: Text = ""
    """Digest of the engine package that it was started from."""
    image: Text = ""
    """Content label of its image; empty with the runtime `process`."""
    gate_open: bool = False
    ended: Text = ""
    """Why it ended, with the detail; empty while it lives."""
    last_log_unix_s: float | None = None
    """When the engine wrote its last line; None before its first."""
    log_tail: tuple[Text, ...] = ()
    memory_low_water_bytes: int | None = None
    kv_tokens: int | None = None
    """Granted by the engine; None until it is known."""
    kv_tokens_asked: int | None = None
    since_unix_s: float = 0.0
    store: Digest | None = None
    """Engram store that its spec names; None where the tables are in memory."""
    proven_store: Digest | None = None
    """Store that the plug-in's proof names; None until the proof exists."""
    padded: int | None = None
    weights_from: Text = ""
    """`slices` or `checkpoint`, as the proof says; empty until it exists."""
    weights_note: Text = ""
    """Which store, or why the full checkpoint was read."""
    rows_read: int | None = None


class BootFacts(Frozen):
    """Record of one boot."""

    deployment: Text
    generation: int
    memory_before_bytes: int
    canary: bool = False
    canary_texts: tuple[Text, ...] = ()
    """What the canaries of the boot were answered: what later ones must begin with."""
    smoke: bool = False
    started_unix_s: float = 0.0
    ready_unix_s: float | None = None
    proven: bool = False
    """It served as it should, and its whole record is kept (`orchestrator.model.boot`)."""
    profile: Text = ""
    """Identity of its profile; empty until it is proven."""
    timeline: dict[Phase, float] = Field(default_factory=dict)
    """Seconds from the start to each phase of this node's rank; empty until it is proven."""


class ImageFacts(Frozen):
    """An image that carries our label. `rootfs` is over the digests of its uncompressed layers."""

    content: Text
    platform: Text
    rootfs: Digest
    config: Text | None = None
    """Digest of the config; None with an engine that does not tell it (containerd store)."""
    kernels: Text = ""
    """Key of what is compiled and tuned at run time; empty before the build has written it."""
    tags: tuple[Text, ...] = ()
    size_bytes: int = 0


class PortFacts(Frozen):
    """An IPv4 address of a link that is up."""

    interface: Text
    address: Text
    """With prefix length."""
    mtu: int = 0
    speed_mbit: int = 0
    """0: the kernel does not tell."""


class KernelCache(Frozen):
    """What a node keeps between boots of images with the same key: compiled kernels, and tuning results."""

    key: Text
    files: int = 0
    bytes: int = 0
    tuned_sha256: Digest | None = None
    """Over the tactics, without the rank's name; None: nothing was tuned yet."""


class DockerFacts(Frozen):
    """The node's Docker engine."""

    problem: Text = ""
    """Why it does not answer; empty when it does."""
    version: Text = ""
    store: Text = ""
    root: Text = ""
    free_bytes: int = 0
    images: tuple[ImageFacts, ...] = ()
    caches: tuple[KernelCache, ...] = ()
    offered: Text | None = None
    """Content label of the image that this node offers to the others now."""

    def image(self, content: str) -> ImageFacts | None:
        """The image with that content label."""
        return next((found for found in self.images if found.content == content), None)


class LeaseFacts(Frozen):
    """Who holds the node's lease."""

    holder: Text
    fence: int


class NodeFacts(Frozen):
    """Everything about one node at one moment."""

    node: Text
    boot_id: Text
    machine_id: Text
    agent: Digest
    now_unix_s: float
    host: Host
    memory: MemoryFacts
    disks: tuple[Disk, ...] = ()
    listeners: tuple[Listener, ...] = ()
    desired: Desired | None = None
    blobs: tuple[Digest, ...] = ()
    engines: tuple[Digest, ...] = ()
    checkpoint: CheckpointFacts | None = None
    share: ShareFacts | None = None
    exported: tuple[Text, ...] = ()
    """Addresses that this node's own checkpoint is exported to."""
    ports: tuple[PortFacts, ...] = ()
    """IPv4 addresses of its links."""
    proof: ProofFacts | None = None
    stores: tuple[StoreFacts, ...] = ()
    jobs: tuple[JobFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    boots: tuple[BootFacts, ...] = ()
    lease: LeaseFacts | None = None
    hardware: dict[str, Any] | None = None
    """Only when the look asked for it; `orchestrator.model.hardware` says what it is, and who needs it checks it."""
    docker: DockerFacts | None = None
    """None: not asked for (runtime `process`), or no client installed."""

    def rank(self, deployment: str, rank: int, generation: int) -> RankFacts | None:
        """That rank of that generation, alive or ended; None when unknown here."""
        for found in self.ranks:
            if (found.deployment, found.rank, found.generation) == (deployment, rank, generation):
                return found
        return None

    def boot(self, deployment: str, generation: int) -> BootFacts | None:
        """The record of that boot."""
        for found in self.boots:
            if (found.deployment, found.generation) == (deployment, generation):
                return found
        return None


ClusterFacts = dict[str, NodeFacts]
"""Facts by node name. A node that did not answer has no entry."""
