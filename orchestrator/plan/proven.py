"""How a gang serves, judged by what its ranks show: the silent slow paths that cost a factor of two to five. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from orchestrator.model.frozen import Frozen
from orchestrator.model.goal import Goal
from orchestrator.model.profile import FlagSetting
from orchestrator.model.step import Failure

ITEMS = ("network", "hcas", "graphs", "speculation", "store", "kv_pool", "greedy", "pace")
REMOTE_FILESYSTEMS = ("nfs", "cifs", "smb", "9p", "ceph", "glusterfs", "fuse")
NO_DISK = ("tmpfs", "ramfs")
_USING = re.compile(r"NET/IB\s*: Using (.*)")
_HCA = re.compile(r"\[\d+\]([A-Za-z0-9_]+):\d+")
_SOCKET = re.compile(r"Using network Socket|NET/Socket\s*: Using")
_IB = re.compile(r"Using network IB|NET/IB\s*: Using")
SLOW_FACTOR = 2.0
"""Above the band times this a start fails: the slow paths that are known cost a factor of two to five."""
_GRAPHS_OFF = frozenset({"--disable-cuda-graph"})


class Shown(Frozen):
    """What the agent's request `shown` answers for one rank."""

    lines: tuple[str, ...] = Field(default=(), max_length=64)
    gauges: dict[str, float] = Field(default_factory=dict)
    store: dict[str, Any] | None = None
    phases: dict[str, float] = Field(default_factory=dict)
    memory_low_water_bytes: int | None = None
    kv_tokens: int | None = None
    kv_tokens_asked: int | None = None
    rows_read: int | None = None
    bytes_read: int | None = None
    hcas: tuple[str, ...] = Field(default=(), max_length=64)
    """RDMA devices that the rank was given in its environment."""


Answered = Annotated[str, StringConstraints(max_length=10_000)]
Ids = Annotated[tuple[int, ...], Field(max_length=1000)]


class Paced(Frozen):
    """What the agent's request `paced` answers for rank 0."""

    first_token_s: float = Field(gt=0, allow_inf_nan=False)
    step_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    steps: int = Field(ge=0)
    texts: tuple[Answered, Answered]
    ids: tuple[Ids, Ids]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was looked at on one rank."""

    name: str
    node: str
    rank: int
    severity: Literal["good", "warning", "error"]
    text: str
    remedy: str = ""
    evidence: tuple[str, ...] = ()


def judge(
    goal: Goal,
    shown: Mapping[int, Shown],
    paced: Paced | str | None = None,
    ignore: tuple[str, ...] = (),
) -> tuple[Item, ...]:
    """Every item of every rank that applies to this profile and cluster.

    Args:
        shown: by rank.
        paced: the timed generations, or why there are none; None when nobody asked.
        ignore: names of items; an error among them becomes a warning.
    """
    found = []
    for rank, node in enumerate(goal.ranked):
        seen = shown.get(rank)
        if seen is None:
            found.append(Item("network", node.name, rank, "warning", "it showed nothing"))
            continue
        found += _network(goal, node.name, rank, seen)
        found += _engine(goal, node.name, rank, seen)
        found += _store(goal, node.name, rank, seen)
    found += _answers(goal, shown.get(0), paced)
    return tuple(
        _demoted(item) if item.name in ignore and item.severity == "error" else item for item in found
    )


def failures(items: tuple[Item, ...]) -> tuple[Failure, ...]:
    """The errors among them."""
    return tuple(
        Failure(
            item.node,
            "failed",
            f"rank {item.rank}: {item.text}",
            f"{item.remedy}; --ignore {item.name} accepts it",
            item.evidence,
        )
        for item in items
        if item.severity == "error"
    )


def _demoted(item: Item) -> Item:
    return Item(item.name, item.node, item.rank, "warning", item.text, item.remedy, item.evidence)


def _flags(goal: Goal) -> dict[str, str]:
    return {
        setting.flag: str(setting.value)
        for setting in goal.profile.settings
        if isinstance(setting, FlagSetting)
    }


def _network(goal: Goal, node: str, rank: int, seen: Shown) -> list[Item]:
    """NCCL between nodes must use RDMA, with every card that it was given. On one host nothing of it applies."""
    if goal.cluster.topology == "single-host" or goal.profile.parallel.tp == 1:
        return []
    socket = tuple(line for line in seen.lines if _SOCKET.search(line))
    if socket:
        remedy = "give the container /dev/infiniband; NCCL_IB_HCA must name this node's cards"
        return [Item("network", node, rank, "error", "NCCL uses TCP sockets, not RDMA", remedy, socket[:3])]
    if not any(_IB.search(line) for line in seen.lines):
        remedy = "NCCL_DEBUG=INFO in the profile shows which network is used"
        return [
            Item("network", node, rank, "warning", "its log does not say which network NCCL uses", remedy)
        ]
    items = [Item("network", node, rank, "good", "NCCL uses RDMA")]
    used = {name for line in seen.lines if (match := _USING.search(line)) for name in _HCA.findall(match[1])}
    if missing := sorted(set(seen.hcas) - used):
        remedy = "half a port is half the bandwidth: sparkyard doctor shows the link"
        text = f"NCCL does not use {', '.join(missing)} (uses {', '.join(sorted(used))})"
        lines = tuple(line for line in seen.lines if _USING.search(line))
        items.append(Item("hcas", node, rank, "error", text, remedy, lines[:2]))
    return items


def _engine(goal: Goal, node: str, rank: int, seen: Shown) -> list[Item]:
    flags, items = _flags(goal), []
    graphs = seen.gauges.get("is_cuda_graph")
    if graphs is not None and not _GRAPHS_OFF & flags.keys() and flags.get("--device", "cuda") == "cuda":
        good = graphs >= 1
        text = "decodes through CUDA graphs" if good else "decodes without CUDA graphs"
        lines = tuple(line for line in seen.lines if "graph" in line.lower())
        remedy = "memory for the capture, or a flag that turns graphs off"
        items.append(Item("graphs", node, rank, "good" if good else "error", text, remedy, lines[-2:]))
    accepted = seen.gauges.get("spec_accept_length")
    if "--speculative-algorithm" in flags and rank == 0 and accepted is not None:
        good = accepted > 1
        text = f"accepts {accepted:.2f} tokens a step"
        remedy = "the draft's weights or tables do not fit this checkpoint"
        items.append(Item("speculation", node, rank, "good" if good else "error", text, remedy))
    if (
        seen.kv_tokens is not None
        and seen.kv_tokens_asked is not None
        and seen.kv_tokens < seen.kv_tokens_asked
    ):
        text = f"KV pool of {seen.kv_tokens:,} tokens, asked for {seen.kv_tokens_asked:,}"
        items.append(Item("kv_pool", node, rank, "warning", text, "sparkyard plan serve shows the ledger"))
    return items


def _store(goal: Goal, node: str, rank: int, seen: Shown) -> list[Item]:
    """Engram rows are read at random for every token: only a disk of the node's own is fast enough."""
    if goal.profile.engram.mode != "disk" or seen.store is None:
        return []
    kind = str(seen.store.get("filesystem", ""))
    fault = ""
    if kind.startswith(REMOTE_FILESYSTEMS):
        fault = f"its Engram rows lie on {kind}, not on a disk of this node"
    elif kind in NO_DISK:
        fault = f"its Engram rows lie in memory ({kind})"
    elif seen.store.get("usb"):
        fault = "its Engram rows lie on a USB disk"
    elif seen.store.get("rotational"):
        fault = "its Engram rows lie on a turning disk"
    if not fault:
        device = str(seen.store.get("device") or "")
        where = f"the disk {device} of this node" if device else "no block device that this node names"
        return [Item("store", node, rank, "good", f"Engram rows on {kind}, {where}")]
    # in the lab the place is a test's own folder, and no row comes late
    severity: Literal["warning", "error"] = "warning" if goal.cluster.topology == "single-host" else "error"
    return [Item("store", node, rank, severity, fault, "set the node's root in cluster.yaml to its NVMe")]


def _answers(goal: Goal, head: Shown | None, paced: Paced | str | None) -> list[Item]:
    """Two greedy runs of one prompt, and how long its tokens took."""
    name = goal.head.name
    if paced is None:
        return []
    if isinstance(paced, str):
        return [Item("greedy", name, 0, "warning", f"no timed answer: {paced}", "sparkyard smoke shows more")]
    return [_greedy(name, paced), *_pace(goal, name, head, paced)]


def _greedy(node: str, paced: Paced) -> Item:
    one, other = paced.ids if all(paced.ids) else paced.texts
    if one == other:
        unit = "tokens" if all(paced.ids) else "characters"
        return Item("greedy", node, 0, "good", f"two greedy runs are equal, {len(one)} {unit}")
    place = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    text = f"two greedy runs of one prompt differ from token {place} on"
    if not all(paced.ids):
        text = f"two greedy runs of one prompt differ from character {place} on"
    remedy = (
        "a kernel that adds in no fixed order, or rows that are not read right: compare with --ignore greedy"
    )
    return Item("greedy", node, 0, "error", text, remedy, tuple(repr(found)[:200] for found in paced.texts))


def _pace(goal: Goal, node: str, head: Shown | None, paced: Paced) -> list[Item]:
    """Each figure against the profile's band; nothing is judged while other requests are in work."""
    band = goal.profile.band
    running = head.gauges.get("num_running_reqs", 0.0) if head is not None else 0.0
    found = []
    for what, measured_s, wanted in (
        ("first token after", paced.first_token_s, band.first_token_s if band else None),
        (f"a step (median of {paced.steps}) in", paced.step_s, band.step_s if band else None),
    ):
        if measured_s is None:
            continue
        text = f"{what} {measured_s * 1e3:.0f} ms"
        if wanted is None or running > 0:
            why = f"{running:.0f} other requests in work" if running > 0 else "the profile has no band"
            found.append(Item("pace", node, 0, "good", f"{text}; not judged: {why}"))
            continue
        low_s, high_s = wanted
        text += f", band {low_s * 1e3:g} to {high_s * 1e3:g} ms"
        if measured_s > high_s:
            severity: Literal["error", "warning"] = (
                "error" if measured_s > SLOW_FACTOR * high_s else "warning"
            )
            remedy = "a slow path: sparkyard doctor --deep, clocks and links; bench shows which part is slow"
            found.append(Item("pace", node, 0, severity, f"slow: {text}", remedy))
        elif measured_s < low_s:
            found.append(Item("pace", node, 0, "warning", f"too quick for this model: {text}"))
        else:
            found.append(Item("pace", node, 0, "good", text))
    return found
