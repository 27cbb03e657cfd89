"""Rank specs: what each rank runs, from profile, cluster and what is known of the nodes' links. Pure.

A spec leaves five places open, which the node's agent fills with its own folders: `{directory}`, `{engine}`,
`{checkpoint}`, `{packs}` and `{slices}`. The identity of a spec is that of its JSON with the places open, so it
can be computed before any node has been asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.frozen import canonical, identity
from orchestrator.model.profile import (
    AbsentSetting,
    EnvSetting,
    FlagSetting,
    PluginSetting,
    Profile,
    Scalar,
)
from orchestrator.plan.fabric import Fabric

SCHEMA = "sparkyard/rank-spec/v1"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Places:
    """What the node's agent fills in; ranks that no agent starts are given their folders here."""

    directory: str = "{directory}"
    engine: str = "{engine}"
    checkpoint: str = "{checkpoint}"
    packs: str = "{packs}"
    slices: str = "{slices}"


OPEN = Places()


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank, where it runs, and its spec (docs/formats.md)."""

    node: str
    rank: int
    body: Mapping[str, Any] = field(hash=False)

    @property
    def identity(self) -> str:
        """SHA-256 of the canonical JSON, lower-case hex."""
        return identity(dict(self.body))


def rank_specs(
    profile: Profile,
    cluster: Cluster,
    *,
    generation: int,
    stores: Mapping[int, str],
    slices: Mapping[int, str] | None = None,
    fabrics: Mapping[str, Fabric] | None = None,
    places: Places = OPEN,
) -> tuple[RankSpec, ...]:
    """The spec of every rank, rank 0 first.

    `stores` and `slices` give the ids of each rank's packed Engram store and slice store; `fabrics` what was looked up
    on each node about its links, by node name (not needed on a single host).
    Raises ConfigError when the cluster cannot carry the profile.
    """
    nodes = placed(profile, cluster)
    if cluster.topology != "single-host":
        missing = [node.name for node in nodes if fabrics is None or node.name not in fabrics]
        if missing:
            raise ConfigError([f"links of {', '.join(missing)}: not known; a rank spec needs them looked up"])
    found = fabrics or {}
    return tuple(
        RankSpec(
            node.name,
            rank,
            _body(profile, cluster, nodes, rank, generation, found, places)
            | _nccl(profile)
            | {"plugin": _plugin(profile, rank, stores.get(rank), (slices or {}).get(rank), places)},
        )
        for rank, node in enumerate(nodes)
    )


def placed(profile: Profile, cluster: Cluster) -> tuple[Node, ...]:
    """The nodes that carry the ranks, in their order. Raises ConfigError when there are too few."""
    tp = profile.parallel.tp
    if len(cluster.nodes) < tp:
        raise ConfigError(
            [f"cluster.nodes: profile {profile.name} needs {tp} nodes, found {len(cluster.nodes)}"]
        )
    return cluster.ranked[:tp]


def _body(
    profile: Profile,
    cluster: Cluster,
    nodes: tuple[Node, ...],
    rank: int,
    generation: int,
    fabrics: Mapping[str, Fabric],
    places: Places,
) -> dict[str, Any]:
    node, head = nodes[rank], nodes[0]
    ports = profile.ports
    return {
        "schema": SCHEMA,
        "deployment": profile.name,
        "generation": generation,
        "rank": rank,
        "tp": profile.parallel.tp,
        "argv": [
            *_program(profile, node),
            *_arguments(profile, cluster, nodes, rank, fabrics, places.checkpoint),
        ],
        "env": environment(profile, cluster, rank, fabrics.get(node.name), places.engine),
        "directory": places.directory,
        **_floor(profile),
        "grace_s": profile.deadlines.drain_s,
        "api_port": ports.api + node.port_offset,
        "gate_port": ports.gate + head.port_offset if rank == 0 and len(nodes) > 1 else None,
        "metrics_port": ports.api + node.port_offset,
    }


def _nccl(profile: Profile) -> dict[str, dict[str, str]]:
    """The library that the node's agent checks before it starts the rank; nothing for the image's own."""
    if profile.nccl is None:
        return {}
    return {"nccl": {"library": profile.nccl.library, "sha256": profile.nccl.sha256}}


def _floor(profile: Profile) -> dict[str, int]:
    memory = profile.memory
    if memory.floor_bytes is not None:
        return {"memory_floor_bytes": memory.floor_bytes}
    return {"memory_floor_below_start_bytes": memory.floor_below_start_bytes or 0}


def _program(profile: Profile, node: Node) -> list[str]:
    match profile.engine.runtime:
        case "docker":
            return ["/usr/bin/env", "python3", "-m", "sglang.launch_server"]
        case "process":
            if not node.engine_python:
                raise ConfigError([f"cluster.nodes.{node.name}.engine_python: runtime `process` needs it"])
            return [node.engine_python, "-m", "sglang.launch_server"]


def _arguments(
    profile: Profile,
    cluster: Cluster,
    nodes: tuple[Node, ...],
    rank: int,
    fabrics: Mapping[str, Fabric],
    checkpoint: str,
) -> list[str]:
    node, head, ports = nodes[rank], nodes[0], profile.ports
    words = ["--model-path", checkpoint, "--served-model-name", profile.model.served_name]
    words += ["--tp", str(len(nodes)), "--nnodes", str(len(nodes)), "--node-rank", str(rank)]
    if len(nodes) > 1:
        address = rendezvous_address(cluster, node, head, fabrics)
        words += ["--dist-init-addr", f"{address}:{ports.rendezvous + head.port_offset}"]
        words += ["--gated-launch-port", str(ports.gate + head.port_offset)]
    # the page of another rank is for its own node's agent only; rank 0 is the API
    words += ["--host", ports.listen if rank == 0 else LOOPBACK, "--port", str(ports.api + node.port_offset)]
    if profile.parallel.padding is not None:
        words += ["--json-model-override-args", canonical(overrides(profile))]
    for setting in profile.settings:
        if isinstance(setting, FlagSetting) and _meant_for(setting.ranks, rank):
            words.append(setting.flag)
            if setting.value is not None:
                words.append(text(setting.value))
    return words


def overrides(profile: Profile) -> dict[str, int]:
    """Config keys that give SGLang the padded shapes; empty when nothing is padded."""
    padding = profile.parallel.padding
    if padding is None:
        return {}
    return {"num_attention_heads": padding.num_attention_heads, "o_groups": padding.o_groups}


def rendezvous_address(cluster: Cluster, node: Node, head: Node, fabrics: Mapping[str, Fabric]) -> str:
    """The head's address as this node reaches it: over a link that both share, else its fabric address.

    The far side of a ring shares no link with the head: there only the management network leads to it.
    """
    if cluster.topology == "single-host" or node == head:
        return head.fabric
    ours, theirs = fabrics[node.name], fabrics[head.name]
    met = theirs.address_towards(ours)
    if met is None and ours.rails and theirs.rails and head.address != LOOPBACK:
        return head.address
    return met or head.fabric


def environment(
    profile: Profile, cluster: Cluster, rank: int, fabric: Fabric | None, engine: str = OPEN.engine
) -> dict[str, str]:
    """What the engine finds in its environment: our plug-in, the node's own links, then the profile's settings."""
    env = {"PYTHONPATH": engine} if profile.engine.runtime == "process" else {}
    if cluster.topology == "single-host":
        env["GLOO_SOCKET_IFNAME"] = "lo"
    elif fabric is not None:
        env |= fabric.environment()
    if profile.nccl is not None:
        # torch links its own libnccl: only a preload comes before it. SGLang's pynccl opens the file by this name.
        env |= {"LD_PRELOAD": profile.nccl.library, "SGLANG_NCCL_SO_PATH": profile.nccl.library}
    for setting in profile.settings:
        if isinstance(setting, EnvSetting) and _meant_for(setting.ranks, rank):
            env[setting.env] = text(setting.value)
    return env


def _plugin(
    profile: Profile, rank: int, store: str | None, slices: str | None, places: Places
) -> dict[str, Any]:
    engram: dict[str, Any] = {"mode": profile.engram.mode, "ownership": profile.engram.ownership}
    if profile.engram.mode == "disk":
        if store is None:
            raise ConfigError([f"rank {rank}: engram.mode is disk but no packed store is known for it"])
        engram["store"] = f"{places.packs}/{store}"
    settings: dict[str, Scalar] = {
        setting.plugin: setting.value for setting in profile.settings if isinstance(setting, PluginSetting)
    }
    if rank == 0 and profile.ports.api_key_file is not None:
        settings["api_key_file"] = profile.ports.api_key_file
    plugin: dict[str, Any] = {"engram": engram, "padding": overrides(profile), "settings": settings}
    if slices is not None:
        plugin["slices"] = {"store": f"{places.slices}/{slices}", "revision": profile.model.revision}
    return plugin


def absent(profile: Profile) -> tuple[AbsentSetting, ...]:
    """What the profile wants and nothing offers, with its cost."""
    return tuple(setting for setting in profile.settings if isinstance(setting, AbsentSetting))


def _meant_for(ranks: str, rank: int) -> bool:
    return ranks == "all" or (ranks == "head") == (rank == 0)


def text(value: Scalar) -> str:
    """A setting's value as one word of a command line or environment: booleans as 1 and 0, numbers as written."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
