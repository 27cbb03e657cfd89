"""What a check is, what it looks at, and what it may answer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from orchestrator.model.fabric import Function, Links
from orchestrator.model.finding import Confidence, Severity
from orchestrator.model.hardware import Fact, Facts, Hardware

Value = TypeVar("Value")
Topology = Literal["triangle", "switch", "ring", "single-host"]

PROBE_MAX_AGE_S = 24 * 3600  # results of `doctor --deep` count for a day


@dataclass(frozen=True, slots=True)
class Node:
    """One node as the controller sees it.

    hardware: None when the node did not answer; `unreachable` then says why.
    offset_s: the node's clock minus the controller's, None when it was not measured.
    ports: TCP ports that the profile will need here.
    paths: folders whose file system must have room.
    """

    name: str
    hardware: Hardware | None = None
    unreachable: str = ""
    offset_s: float | None = None
    ports: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()

    @property
    def facts(self) -> Facts:
        """Its facts; none at all when it did not answer."""
        return self.hardware.facts if self.hardware is not None else Facts()

    @property
    def functions(self) -> tuple[Function, ...]:
        """Physical functions of its ConnectX-7."""
        links = value(self.facts.links)
        return tuple(item for item in links.functions if not item.virtual) if links else ()

    @property
    def is_gb10_memory(self) -> bool:
        """Whether the memory facts are those of the machine that the GPU facts describe.

        Where the machine is a recording and the memory is live (the lab), GB10's limits say nothing about it.
        """
        memory, gpu = self.facts.memory, self.facts.gpu
        return memory is not None and (gpu is None or gpu.origin == memory.origin)

    def log(self, kind: str) -> tuple[str, ...]:
        """Kernel log lines of that kind; empty also when the log could not be read."""
        return (value(self.facts.kernel_log) or {}).get(kind, ())


@dataclass(frozen=True, slots=True)
class Yard:
    """Everything that checks may look at.

    docker: the profile runs containers. environment: NCCL and Gloo variables that the profile sets.
    """

    nodes: tuple[Node, ...]
    now_unix_s: float
    topology: Topology | None = None
    docker: bool = True
    tp: int | None = None
    ring_library: bool = False
    """The profile names an NCCL library, with its digest, that can run a ring."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def seen(self) -> tuple[Node, ...]:
        """Nodes that answered."""
        return tuple(node for node in self.nodes if node.hardware is not None)


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing that a check found. What is not said here comes from the check."""

    measured: str
    evidence: str = ""
    link: str = ""
    node: str = ""
    """Only for checks of the whole yard; empty is the yard itself."""
    severity: Severity | None = None
    confidence: Confidence | None = None
    remedy: str = ""
    because_of: str = ""


Each = Callable[[Node], Iterable[Hit]]
Within = Callable[[Node, Yard], Iterable[Hit]]
Whole = Callable[[Yard], Iterable[Hit]]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its documentation and its judgement.

    reads: names of the facts without which it is unknown.
    each: asked for every node that answered. within: the same, with a look at the others. whole: asked once.
        Exactly one of the three.
    deep: needs a load probe; names it. Without a fresh result the answer is "not tested", never fine.
    sees_errors: judges failed facts itself instead of being unknown then.
    """

    id: str
    reads: tuple[str, ...]
    good: str
    bad: str
    severity: Severity
    remedy: str
    source: str
    each: Each | None = None
    within: Within | None = None
    whole: Whole | None = None
    deep: Literal["", "burn", "gemv", "rdma", "nvme", "allreduce", "ping"] = ""
    sees_errors: bool = False
    confidence: Confidence = Confidence.HIGH
    only_docker: bool = False
    needs_peers: bool = False
    """Says nothing about a cluster of one node."""


def value(fact: Fact[Value] | None) -> Value | None:
    """The value of a fact; None when it is missing, for whatever reason."""
    return fact.value if fact is not None else None


def links_of(node: Node) -> Links | None:
    """The ConnectX-7 of a node, None when nothing is known."""
    return value(node.facts.links)


def gib(count: float) -> str:
    """Bytes for people: `121.7 GiB`."""
    return f"{count / 1024**3:.1f} GiB"


def version(text: str | None) -> tuple[int, ...]:
    """Numbers of a dotted version; empty when there are none. `580.173.02` → (580, 173, 2)."""
    numbers = []
    for part in (text or "").split("."):
        digits = part.split("-")[0]
        if not digits.isdecimal() or len(digits) > 9:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def by_model(nodes: Iterable[Node]) -> Iterator[tuple[Node, ...]]:
    """Nodes that may be compared in firmware: same maker and product. Groups of one are left out."""
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        dmi = value(node.facts.dmi)
        if dmi is not None:
            groups.setdefault(dmi.model, []).append(node)
    for group in groups.values():
        if len(group) > 1:
            yield tuple(group)


E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE
FORUM = "https://forums.developer.nvidia.com/t/"
AC_DRAIN = (
    "shut the node down, unplug its power supply from the wall and from the unit for at least 60 s, "
    "then start it again; a reboot is not enough"
)
