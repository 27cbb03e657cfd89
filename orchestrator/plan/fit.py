"""Does a deployment fit: memory and disks of its nodes, judged from facts before the first byte is moved. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.facts import ClusterFacts, NodeFacts
from orchestrator.model.facts import Disk as DiskFacts
from orchestrator.model.goal import Goal
from orchestrator.model.profile import Profile
from orchestrator.model.step import Blocked, Failure
from orchestrator.plan import disk
from orchestrator.plan.geometry import Geometry
from orchestrator.plan.judge import Contents, judge
from orchestrator.plan.ledger import GB10_BYTES, GIB, Ledger, Place, RankLedger
from orchestrator.plan.tensors import Rule

MODEL = "deepseek-ai/DeepSeek-V4.1-Flash"
"""Also the start of the names of later releases. What decides is the geometry, where a checkpoint shows it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the ledgers judge with. `corrections` are bytes that earlier boots measured, by rank and line."""

    contents: Contents
    rules: tuple[Rule, ...]
    corrections: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


def differences(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What sets a checkpoint's `config.json` apart from DeepSeek-V4.1-Flash; keys that it lacks do not count.

    Names and revisions say nothing here: a later release of the same shapes passes.
    """
    model = Geometry()
    layers, rows = zip(*model.engram_rows, strict=True)
    wanted = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "o_groups": model.o_groups,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.positions,
        "engram_layer_ids": list(layers),
        "engram_num_embeddings": list(rows),
    }
    return tuple(
        f"{key} {config[key]}, DeepSeek-V4.1-Flash has {value}"
        for key, value in wanted.items()
        if key in config and config[key] != value
    )


def applies(profile: Profile, cluster: Cluster, facts: ClusterFacts) -> bool:
    """Whether the published geometry speaks of this model: by its name, or because its `config.json` has these shapes,
    the tables' rows among them.
    """
    owner = cluster.checkpoint.node if cluster.checkpoint else cluster.head
    seen = facts[owner].checkpoint if owner in facts else None
    config = seen.config if seen else {}
    return profile.model.name.startswith(MODEL) or (
        "engram_num_embeddings" in config and not differences(config)
    )


def places(nodes: tuple[Node, ...], facts: ClusterFacts) -> list[Place]:
    """The nodes of the ranks as the memory ledger sees them; estimates where a node was not looked at."""
    return [_place(node.name, facts.get(node.name)) for node in nodes]


def _place(name: str, facts: NodeFacts | None) -> Place:
    """What is available is only the node's own use while no rank runs there."""
    if facts is None:
        return Place(name, GB10_BYTES)
    idle = not any(rank.alive for rank in facts.ranks)
    used = facts.memory.total_bytes - facts.memory.available_bytes if idle else None
    return Place(name, facts.memory.total_bytes, used)


def rooms(
    profile: Profile, cluster: Cluster, nodes: tuple[Node, ...], facts: ClusterFacts
) -> list[disk.Room]:
    """The disks of the nodes; without a look only what they will have to hold is known."""
    return [_room(profile, cluster, node, facts.get(node.name)) for node in nodes]


def _room(profile: Profile, cluster: Cluster, node: Node, here: NodeFacts | None) -> disk.Room:
    checkpoint = cluster.checkpoint
    has = checkpoint is not None and checkpoint.node == node.name
    builds = profile.engine.runtime == "docker" and cluster.head == node.name
    unseen = disk.Volume(node.root, None)
    if here is None:
        return disk.Room(node.name, unseen, has, builds)
    held: list[tuple[str, int]] = []
    if has and here.checkpoint is not None:
        held.append((disk.CHECKPOINT, here.checkpoint.total_bytes))
    for kind, file in (("tables", disk.TABLES), ("slices", disk.SLICES)):
        if there := sum(store.bytes for store in here.stores if store.kind == kind):
            held.append((file, there))
    at = {}
    if has and checkpoint is not None:
        at[disk.CHECKPOINT] = _holding(here, checkpoint.path)
    if here.docker is not None and here.docker.root:
        at[disk.IMAGE] = at[disk.CACHE] = _holding(here, here.docker.root)
        held += [(disk.IMAGE, image.size_bytes) for image in here.docker.images[:1]]
    elsewhere = {name: found for name, found in at.items() if found is not None}
    return disk.Room(node.name, _holding(here, node.root) or unseen, has, builds, tuple(held), elsewhere)


def _holding(here: NodeFacts, path: str) -> disk.Volume | None:
    """The filesystem that was looked at for this very path, or for a folder above it."""
    above = [found for found in here.disks if PurePosixPath(path).is_relative_to(found.path)]
    if not above:
        return None
    best: DiskFacts = max(above, key=lambda found: len(found.path))
    return disk.Volume(best.path, best.free_bytes, best.device)


def ledger(goal: Goal, facts: ClusterFacts, budget: Budget) -> Ledger:
    """The memory ledger of the ranks, with what was looked up in the place of estimates."""
    return judge(goal.profile, places(goal.ranked, facts), budget.contents, budget.rules, budget.corrections)


def refused(goal: Goal, facts: ClusterFacts, budget: Budget, *, disks: bool) -> Blocked | None:
    """Why this deployment must not be brought up, each reason with its arithmetic; None when it may.

    `disks`: judge the room on the disks too, for what `up` has not made yet.
    """
    found = _geometry(goal, facts) or _memory(ledger(goal, facts, budget))
    if disks and not found:
        given = rooms(goal.profile, goal.cluster, goal.ranked, facts)
        found = _disks(disk.disk_ledger(goal.profile, given, budget.contents, budget.rules))
    return Blocked(tuple(found)) if found else None


def _geometry(goal: Goal, facts: ClusterFacts) -> list[Failure]:
    owner = facts.get(goal.owner.name)
    seen = owner.checkpoint if owner else None
    if seen is None:
        return []
    return [
        Failure(
            goal.owner.name,
            "refused",
            f"{seen.path}/config.json: {why}",
            "its padding, tables and ledger are made for that geometry; serve a release that has it",
        )
        for why in differences(seen.config)
    ]


def _memory(found: Ledger) -> list[Failure]:
    if found.verdict != "does not fit":
        return []
    remedy = "; ".join(found.remedies) or "sparkyard plan serve shows every line"
    if found.refusals:
        return [Failure(found.tightest.node, "refused", why, remedy) for why in found.refusals]
    return [_short(rank, remedy) for rank in found.ranks if rank.verdict == "does not fit"]


def _short(rank: RankLedger, remedy: str) -> Failure:
    asked = rank.total_bytes - rank.margin_bytes
    text = (
        f"rank {rank.rank} needs {asked / GIB:.2f} GiB of {rank.total_bytes / GIB:.2f}: "
        f"{-rank.margin_bytes / GIB:.2f} GiB are missing"
    )
    lines = sorted(rank.lines, key=lambda line: -line.bytes)
    return Failure(
        rank.node,
        "refused",
        text,
        remedy,
        tuple(f"{line.name}: {line.bytes / GIB:.2f} GiB ({line.source})" for line in lines if line.bytes),
    )


def _disks(found: tuple[disk.NodeDisk, ...]) -> list[Failure]:
    return [
        Failure(
            each.node,
            "refused",
            f"{each.path}: {each.free_bytes:,} bytes free, {each.peak_bytes:,} needed at the peak and "
            f"{disk.SPARE_BYTES:,} kept free",
            f"make {-(each.margin_bytes or 0):,} bytes of room (sparkyard prune shows what is superseded), or set "
            "another root for this node",
            tuple(
                f"{file.name}: {file.bytes:,}"
                + (f" and {file.temporary_bytes:,} while it is made" if file.temporary_bytes else "")
                for file in each.files
            ),
        )
        for each in found
        if each.verdict == "does not fit"
    ]
