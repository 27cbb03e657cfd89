"""`cluster.yaml`: where the nodes are and how they are reached. Private; written by `init` and `lab`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from orchestrator.model.frozen import Frozen

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Node(Frozen):
    """One box."""

    name: Name
    """What this node is called in every message; need not be its host name."""
    transport: Literal["ssh", "local"] = "ssh"
    """`local` runs the agent over a pipe: for the node that the controller itself runs on."""
    address: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Host name or address for SSH, on the management network."""
    port: Port = 22
    """SSH port."""
    user: str = Field(default="", max_length=64)
    """Account on the node; empty: the same as on the controller."""
    key: AbsolutePath | None = None
    """Private key file; empty: the SSH agent and the default keys."""
    host_key: str | None = Field(default=None, max_length=2048)
    """Pinned host key, `type base64`, as written by `enroll`. Without it the node is refused."""
    python: str = Field(default="python3", max_length=4096)
    """Python 3.10 or newer on the node; runs the agent."""
    root: AbsolutePath
    """sparkyard's own folder on the node: packed tables, jobs, records. Must be on the local NVMe."""
    fabric_address: str = Field(default="", max_length=255)
    """Address on the fast links, by which the other nodes reach this one; empty: `address`."""
    port_offset: int = Field(default=0, ge=0, le=20000)
    """Added to every port of the profile on this node; lets several nodes share one address (the lab)."""
    checkpoint_path: AbsolutePath | None = None
    """Its own copy of the checkpoint, read instead of the share; its index and blocks are compared with the owner's."""
    engine_python: str | None = Field(default=None, max_length=4096)
    """Python of the engine's environment, for the runtime `process`."""
    recorded: AbsolutePath | None = None
    """Folder with recorded hardware facts (the lab); the facts then say that they are a recording."""

    @property
    def fabric(self) -> str:
        """Address for the other nodes."""
        return self.fabric_address or self.address


class Checkpoint(Frozen):
    """Where the checkpoint lies."""

    node: Name
    """The node that has the files and shares them."""
    path: AbsolutePath
    """Folder with `model.safetensors.index.json` on that node."""
    export: str | None = Field(default=None, max_length=4096, pattern=r"^[^:/]+:/.*$")
    """An NFS export that exists already, as `address:/folder` of the checkpoint; empty: `share` makes one."""


class Cluster(Frozen):
    """The whole file."""

    schema_: Literal["sparkyard/cluster/v1"] = Field(alias="schema")
    topology: Literal["triangle", "switch", "ring", "single-host"]
    """How the fast links are cabled; `single-host` is the lab."""
    head: Name
    """Runs rank 0 and the API."""
    nodes: tuple[Node, ...] = Field(min_length=1, max_length=64)
    checkpoint: Checkpoint | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        names = [node.name for node in self.nodes]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(f"nodes: the name {', '.join(double)} stands twice")
        if self.head not in names:
            raise ValueError(f"head: no node is called {self.head!r}; known: {', '.join(names)}")
        if self.checkpoint is not None and self.checkpoint.node not in names:
            raise ValueError(f"checkpoint.node: no node is called {self.checkpoint.node!r}")
        return self

    def node(self, name: str) -> Node:
        """The node called ``name``; KeyError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    @property
    def ranked(self) -> tuple[Node, ...]:
        """Nodes in the order of ranks: the head first, the others as listed."""
        head = self.node(self.head)
        return (head, *(node for node in self.nodes if node.name != self.head))
