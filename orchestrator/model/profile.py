"""`profiles/*.yaml`: what to serve. Versioned and shareable: no address, no secret, no path of one machine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from orchestrator.model.cluster import AbsolutePath, Port
from orchestrator.model.frozen import Frozen, identity

Scalar = str | int | float | bool
RING_TP = 4
"""Ranks of a switchless ring that stock NCCL cannot join: with two ports a node not every pair of four meets."""


class Evidence(Frozen):
    """Who booted this profile, where, and where they say so."""

    who: str
    when: str
    image: str
    source: str


class Model(Frozen):
    """The checkpoint."""

    name: str = Field(min_length=1, max_length=200)
    """Repository name, for example `deepseek-ai/DeepSeek-V4.1-Flash`."""
    served_name: str = Field(min_length=1, max_length=200)
    """What clients send as `model`."""
    revision: str = Field(min_length=1, max_length=64)
    """Pinned revision of the repository."""


class Engine(Frozen):
    """The serving engine."""

    name: Literal["sglang"]
    version: str
    runtime: Literal["process", "docker"]
    """`process`: a process group on the node (lab); `docker`: a container from the built image."""
    image: str | None = None
    """Base image for the runtime `docker`. By digest, or by tag: then `build` records its digest and refuses drift."""


class Padding(Frozen):
    """Shapes after padding, for a tp that does not divide the model's own."""

    num_attention_heads: int = Field(ge=1)
    o_groups: int = Field(ge=1)


class Parallel(Frozen):
    """How the model is split."""

    tp: int = Field(ge=1, le=64)
    """Tensor-parallel ranks, one a node."""
    padding: Padding | None = None


class Nccl(Frozen):
    """Another NCCL than the image's: the same file at the same place on every node that serves."""

    library: AbsolutePath
    """`libnccl.so.2` on the node; shown to the engine read-only and loaded before its own."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Digest of that file; a node with another one starts no rank."""
    source: str = Field(min_length=1, max_length=500)
    """Where it comes from, and that it can run what this profile asks of it."""


class Engram(Frozen):
    """Conditional memory tables."""

    mode: Literal["disk", "memory"] = "disk"
    ownership: Literal["balanced", "contiguous", "rows"] = "balanced"
    layers: tuple[int, ...] = ()
    """Decoder layers that carry a table."""


class Share(Frozen):
    """How the checkpoint is read over NFS. What a mount became is read back, a fallback is named."""

    version: Literal["4.2", "4.1", "4.0"] = "4.2"
    proto: Literal["tcp", "rdma"] = "tcp"
    """`rdma` needs both ends; where the mount is refused, TCP is used and named."""
    nconnect: int = Field(default=8, ge=1, le=16)
    """TCP connections; 16 is the kernel's limit."""
    rsize_bytes: int = Field(default=1 << 20, ge=4096, le=1 << 20)
    """Largest read; a server with little memory grants less."""
    timeout_ds: int = Field(default=600, ge=10)
    """NFS's `timeo`, tenths of a second. Mounts are hard: a read waits for the server, it never fails half-way."""


class Memory(Frozen):
    """Bounds on MemAvailable of a node."""

    floor_bytes: int | None = Field(default=None, ge=0)
    """The guard kills the engine below this; empty: see `floor_below_start_bytes`."""
    floor_below_start_bytes: int | None = Field(default=None, ge=0)
    """The floor is MemAvailable before the boot minus this, 256 MiB at least (the lab, whose host others share)."""
    gate_bytes: int = Field(default=0, ge=0)
    """A rank is started only when at least this much is available."""
    back_tolerance_bytes: int = Field(default=1 << 30, ge=0)
    """`stop` is done when MemAvailable is back to its value before the boot minus this."""

    @model_validator(mode="after")
    def _one_floor(self) -> Memory:
        if (self.floor_bytes is None) == (self.floor_below_start_bytes is None):
            raise ValueError("exactly one of floor_bytes and floor_below_start_bytes must be set")
        return self


class Ports(Frozen):
    """Ports on every node (plus the node's `port_offset`)."""

    api: Port
    """OpenAI API of rank 0; the metrics page of every rank."""
    gate: Port
    """SGLang's launch gate on rank 0; closed once the engine is activated."""
    rendezvous: Port
    """torch.distributed's store on rank 0."""
    listen: str = "127.0.0.1"
    """Address that the API listens on. Anything but loopback needs `api_key_file`."""
    api_key_file: str | None = None
    """File on the head with the API key, mode 600."""

    @model_validator(mode="after")
    def _key_beyond_loopback(self) -> Ports:
        if self.listen not in {"127.0.0.1", "::1", "localhost"} and self.api_key_file is None:
            raise ValueError(f"listen is {self.listen}: an API beyond loopback needs api_key_file")
        return self


class Deadlines(Frozen):
    """How long each phase of a boot may take, seconds."""

    join_s: float = Field(gt=0)
    """From the start of rank 0 until every rank waits at the gate."""
    ready_s: float = Field(gt=0)
    """From the opened gate until the API answers."""
    drain_s: float = Field(gt=0)
    """From SIGTERM on rank 0 until every rank is gone; then SIGKILL."""
    memory_s: float = Field(gt=0)
    """How long freed memory may take to show in MemAvailable."""
    pack_s: float = Field(gt=0)
    """The whole pack job."""
    canary_s: float = Field(gt=0)
    """One canary answer."""
    smoke_s: float = Field(gt=0)
    """The whole smoke."""


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Band(Frozen):
    """What one request on a gang at rest takes, measured after each start: from, to, in seconds.

    Above it is said, above twice of it the start fails: the slow paths that nothing else shows cost a factor of two to
    five. Below it is said, too: such a gang serves something else than this model.
    """

    first_token_s: tuple[Seconds, Seconds]
    """First token of a new prompt of about 70 tokens."""
    step_s: tuple[Seconds, Seconds]
    """From one streamed chunk to the next, the median."""
    source: str = Field(min_length=1)
    """Where the figures come from."""

    @model_validator(mode="after")
    def _in_order(self) -> Band:
        for name in ("first_token_s", "step_s"):
            low, high = getattr(self, name)
            if low >= high:
                raise ValueError(f"{name}: {low:g} to {high:g} is no range")
        return self


class FlagSetting(Frozen):
    """A command-line flag that the SGLang argument parser accepts."""

    flag: Annotated[str, StringConstraints(pattern=r"^--[a-z0-9][a-z0-9-]*$")]
    value: Scalar | None = None
    """Empty: a switch without a value."""
    why: str = Field(min_length=1)
    ranks: Literal["all", "head", "workers"] = "all"


class EnvSetting(Frozen):
    """An environment variable that SGLang, NCCL or torch reads."""

    env: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]
    value: Scalar
    why: str = Field(min_length=1)
    ranks: Literal["all", "head", "workers"] = "all"


class PluginSetting(Frozen):
    """A switch of our own plug-in."""

    plugin: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
    value: Scalar
    why: str = Field(min_length=1)


class AbsentSetting(Frozen):
    """Wanted, but nothing that we run offers it; `cost` says what that costs."""

    absent: str = Field(min_length=1)
    cost: str = Field(min_length=1)


Setting = FlagSetting | EnvSetting | PluginSetting | AbsentSetting


class Profile(Frozen):
    """The whole file."""

    schema_: Literal["sparkyard/profile/v1"] = Field(alias="schema")
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    """Also the name of the deployment."""
    evidence: tuple[Evidence, ...] | Literal["none"]
    model: Model
    engine: Engine
    parallel: Parallel
    nccl: Nccl | None = None
    """Empty: the image's own. A ring of four nodes without a switch needs one that can run it."""
    engram: Engram = Engram()
    share: Share = Share()
    memory: Memory
    ports: Ports
    deadlines: Deadlines
    band: Band | None = None
    """How fast it must answer; without it the measured figures are only said."""
    settings: tuple[Setting, ...] = ()

    @property
    def identity(self) -> str:
        """Identity of the profile: any change of it is another deployment spec."""
        return identity(self.model_dump(mode="json", by_alias=True))
