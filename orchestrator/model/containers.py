"""Docker on a node: daemon, containers, images."""

from __future__ import annotations

from pydantic import Field

from orchestrator.model.bounded import Count, Short
from orchestrator.model.frozen import Frozen


class Container(Frozen):
    """A container, running or not."""

    id: Short
    name: Short = ""
    image: Short = ""
    state: Short = ""
    exit_code: int | None = None
    restarts: Count = 0
    gpu: bool = False
    privileged: bool = False
    memlock: int | None = None
    """Hard limit in bytes; -1 is unlimited, None is Docker's default."""
    devices: tuple[Short, ...] = Field(default=(), max_length=50)
    environment: dict[Short, Short] = Field(default_factory=dict, max_length=200)
    labels: dict[Short, Short] = Field(default_factory=dict, max_length=200)


class Image(Frozen):
    """A container image."""

    id: Short
    tags: tuple[Short, ...] = Field(default=(), max_length=10)
    architecture: Short = ""
    bytes: Count = 0


class Docker(Frozen):
    """The Docker daemon."""

    reachable: bool
    error: Short | None = None
    version: Short = ""
    storage: Short = ""
    store: Short = ""
    root: Short = ""
    runtimes: tuple[Short, ...] = Field(default=(), max_length=20)
    cgroup_version: Short = ""
    warnings: tuple[Short, ...] = Field(default=(), max_length=20)
    cdi: tuple[Short, ...] = Field(default=(), max_length=50)
    containers: tuple[Container, ...] = Field(default=(), max_length=100)
    images: tuple[Image, ...] = Field(default=(), max_length=100)
