"""The ledgers of a plan: reads what they need (rules, headers), judges, and shows the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.model.cluster import Cluster
from orchestrator.model.facts import ClusterFacts, NodeFacts
from orchestrator.model.profile import Profile
from orchestrator.plan import disk, judge
from orchestrator.plan.launch import absent, placed
from orchestrator.plan.ledger import GB10_BYTES, Ledger, Place
from orchestrator.plan.tensors import Rule, kinds, parse_rules
from orchestrator.shards import read_checkpoint

RULES = Path(__file__).resolve().parents[1] / "engine" / "sparkyard_engine" / "data" / "deepseek-v4.1.json"
MODEL = "deepseek-ai/DeepSeek-V4.1-Flash"
"""Also the start of the names of later releases with the same geometry."""


@dataclass(frozen=True, slots=True)
class Ledgers:
    """What `plan serve` adds to the stages. `memory` is None when nothing is known about the model's tensors."""

    memory: Ledger | None
    json: Mapping[str, Any]
    """Keys `ledger`, `disk`, `absent`, `evidence`."""
    text: tuple[str, ...]


def rules() -> tuple[Rule, ...]:
    """The rules of DeepSeek-V4.1 (docs/formats.md); part of the engine package, read here as data."""
    return parse_rules(json.loads(RULES.read_text(encoding="utf-8")))


def ledgers(
    profile: Profile, cluster: Cluster, checkpoint: Path | None, facts: ClusterFacts | None = None
) -> Ledgers:
    """Judge memory and disks of a plan. Needs no node; with facts, what was looked up replaces the estimates.

    Raises ConfigError when the checkpoint's headers are damaged or the cluster has too few nodes.
    """
    nodes = placed(profile, cluster)
    known = facts or {}
    wanted = {
        "absent": [{"name": setting.absent, "cost": setting.cost} for setting in absent(profile)],
        "evidence": profile.model_dump(mode="json")["evidence"],
    }
    if checkpoint is not None:
        read = read_checkpoint(checkpoint)
        contents = judge.Contents(kinds(read.tensors), read.total_bytes, f"headers below {checkpoint}")
    elif profile.model.name.startswith(MODEL):
        contents = judge.published_contents()
    else:
        why = f"no geometry is known for {profile.model.name}; --checkpoint DIR reads it from the headers"
        return Ledgers(None, {"ledger": None, "disk": None, "ledger_note": why} | wanted, (f"memory: {why}",))
    memory = judge.judge(
        profile, [_place(node.name, known.get(node.name)) for node in nodes], contents, rules()
    )
    rooms = [
        room
        for node in nodes
        if (room := _room(node.name, cluster, node.root, known.get(node.name))) is not None
    ]
    disks = disk.disk_ledger(profile, rooms, contents, rules())
    shown = {"ledger": judge.document(profile, memory, contents), "disk": disk.as_json(disks)}
    lines = judge.text(memory)
    lines += [
        f"disk of {each.node}: {each.verdict}, peak {each.peak_bytes / 1e9:.0f} GB of {each.free_bytes / 1e9:.0f} free"
        for each in disks
    ]
    lines += [f"absent: {setting.absent}: {setting.cost}" for setting in absent(profile)]
    return Ledgers(memory, shown | wanted, tuple(lines))


def _place(name: str, facts: NodeFacts | None) -> Place:
    """What is available is only the node's own use while no rank runs there."""
    if facts is None:
        return Place(name, GB10_BYTES)
    idle = not any(rank.alive for rank in facts.ranks)
    used = facts.memory.total_bytes - facts.memory.available_bytes if idle else None
    return Place(name, facts.memory.total_bytes, used)


def _room(name: str, cluster: Cluster, root: str, facts: NodeFacts | None) -> disk.Room | None:
    if facts is None:
        return None
    holding = [found for found in facts.disks if root.startswith(found.path)]
    if not holding:
        return None
    here = max(holding, key=lambda found: len(found.path))
    has = cluster.checkpoint is not None and cluster.checkpoint.node == name
    held: list[tuple[str, int]] = []
    if facts.checkpoint is not None and has:
        held.append(("checkpoint", facts.checkpoint.total_bytes))
    for kind, file in (("tables", "packed Engram tables"), ("slices", "weight slices")):
        there = sum(store.bytes for store in facts.stores if store.kind == kind and store.complete)
        if there:
            held.append((file, there))
    return disk.Room(name, here.free_bytes, has, name == cluster.head, tuple(held))
