"""The ledgers of a plan: reads what they need (rules, headers), judges, and shows the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.model.cluster import Cluster
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.profile import Profile
from orchestrator.plan import disk, fit, judge
from orchestrator.plan.launch import absent, placed
from orchestrator.plan.ledger import Ledger
from orchestrator.plan.tensors import Rule, kinds, parse_rules
from orchestrator.shards import read_checkpoint

RULES = Path(__file__).resolve().parents[1] / "engine" / "sparkyard_engine" / "data" / "deepseek-v4.1.json"


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


def published() -> fit.Budget:
    """The published geometry of DeepSeek-V4.1-Flash. Takes half a second."""
    return fit.Budget(judge.published_contents(), rules())


def budget(
    profile: Profile, cluster: Cluster, checkpoint: Path | None, facts: ClusterFacts
) -> fit.Budget | None:
    """What the plan is judged with: the headers of ``checkpoint``, or the published geometry; None when neither says
    anything of this model. Raises ConfigError when the checkpoint's headers are damaged.
    """
    if checkpoint is not None:
        read = read_checkpoint(checkpoint)
        return fit.Budget(
            judge.Contents(kinds(read.tensors), read.total_bytes, f"headers below {checkpoint}"), rules()
        )
    return published() if fit.applies(profile, cluster, facts) else None


def ledgers(
    profile: Profile,
    cluster: Cluster,
    checkpoint: Path | None,
    facts: ClusterFacts | None = None,
    corrections: Mapping[int, Mapping[str, int]] | None = None,
) -> Ledgers:
    """Judge memory and disks of a plan. Needs no node; with facts, what was looked up replaces the estimates.

    `corrections`: bytes that earlier boots measured, by rank and line.

    Raises ConfigError when the checkpoint's headers are damaged or the cluster has too few nodes.
    """
    nodes = tuple(placed(profile, cluster))
    known = facts or {}
    wanted = {
        "absent": [{"name": setting.absent, "cost": setting.cost} for setting in absent(profile)],
        "evidence": profile.model_dump(mode="json")["evidence"],
    }
    found = budget(profile, cluster, checkpoint, known)
    if found is None:
        why = f"no geometry is known for {profile.model.name}; --checkpoint DIR reads it from the headers"
        return Ledgers(None, {"ledger": None, "disk": None, "ledger_note": why} | wanted, (f"memory: {why}",))
    contents = found.contents
    memory = judge.judge(profile, fit.places(nodes, known), contents, found.rules, corrections or {})
    disks = disk.disk_ledger(profile, fit.rooms(profile, cluster, nodes, known), contents, found.rules)
    shown = {"ledger": judge.document(profile, memory, contents), "disk": disk.as_json(disks)}
    lines = judge.text(memory)
    lines += [
        f"disk of {each.node}, {each.path}: {each.verdict}, peak {each.peak_bytes / 1e9:.0f} GB"
        + ("" if each.free_bytes is None else f" of {each.free_bytes / 1e9:.0f} free")
        for each in disks
    ]
    lines += [f"absent: {setting.absent}: {setting.cost}" for setting in absent(profile)]
    return Ledgers(memory, shown | wanted, tuple(lines))
