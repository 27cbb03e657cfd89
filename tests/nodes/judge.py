"""Judge recordings the way the doctor does: readers, model, checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node_agent.facts import Recorded, collect
from orchestrator.checks import examine
from orchestrator.checks.check import Node, Yard
from orchestrator.model.finding import Finding
from orchestrator.model.hardware import Hardware
from tests.nodes.gb10 import Recording, cluster

NOW_UNIX_S = 1_795_000_000.0
WIRING = {
    "fe-triangle": "triangle",
    "asus-pair": None,
    "dell-pair": None,
    "mixed-four": "switch",
    "fe-ring": "ring",
    "fe-alone": None,
}


def facts_of(recording: Recording, facts: Mapping[str, Any] | None = None) -> Hardware:
    """Read a recording; `facts` then replaces whole facts, or values inside them by `fact.key`."""
    raw = collect(Recorded(recording), timeout_s=10.0)
    for path, replacement in (facts or {}).items():
        name, *keys = path.split(".")
        place = raw["facts"].setdefault(name, {"origin": "recorded", "value": None, "error": None})
        if not keys:
            place["value"] = replacement
            continue
        inner = place["value"]
        for key in keys[:-1]:
            inner = inner[int(key)] if isinstance(inner, list) else inner[key]
        if isinstance(inner, list):
            inner[int(keys[-1])] = replacement
        else:
            inner[keys[-1]] = replacement
    return Hardware.model_validate(raw)


def changed(recording: Recording, changes: Mapping[str, Any]) -> Recording:
    """A copy of a recording with some of its files, commands, links, modes, sizes or spaces replaced.

    A value of null removes the entry; `prefix/*` with null removes all that start so.
    """
    made = {key: dict(part) if isinstance(part, dict) else part for key, part in recording.items()}
    for section, entries in changes.items():
        for key, replacement in entries.items():
            if key.endswith("*"):
                for name in [name for name in made[section] if name.startswith(key[:-1])]:
                    del made[section][name]
            elif replacement is None:
                made[section].pop(key, None)
            else:
                made[section][key] = replacement
    return made


HEALTHY: dict[str, dict[str, Hardware]] = {}


def healthy(base: str) -> dict[str, Hardware]:
    """The facts of a healthy cluster of `gb10.CLUSTERS`, read once a run."""
    if base not in HEALTHY:
        HEALTHY[base] = {name: facts_of(recording) for name, recording in cluster(base).items()}
    return HEALTHY[base]


def built(case: Mapping[str, Any]) -> dict[str, Hardware]:
    """The cluster of a case: healthy, with some nodes changed; only those are read again."""
    nodes = dict(healthy(case["base"]))
    for name in {*case["change"], *case["facts"]}:
        recording = changed(cluster(case["base"])[name], case["change"].get(name, {}))
        nodes[name] = facts_of(recording, case["facts"].get(name))
    return nodes


def judge(nodes: Mapping[str, Hardware], **options: Any) -> tuple[Finding, ...]:
    """Findings of a cluster; `options` are those of `Yard`, and `offsets_s`, `ports`, `unreachable` by node."""
    offsets = options.pop("offsets_s", {})
    ports = options.pop("ports", {})
    unreachable = options.pop("unreachable", {})
    ignore = options.pop("ignore", ())
    seen = [
        Node(name, hardware, offset_s=offsets.get(name, 0.0), ports=tuple(ports.get(name, ())))
        for name, hardware in nodes.items()
        if name not in unreachable
    ]
    silent = [Node(name, None, unreachable=reason) for name, reason in unreachable.items()]
    return examine(Yard(nodes=(*seen, *silent), now_unix_s=NOW_UNIX_S, **options), ignore)
