"""Files that a yard hands to its users: `cluster.yaml`, `known_hosts`, `yard.json`."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.integration.yard import state
from tests.integration.yard.layout import Layout, Topology, plan

NODE_ROOT = "/srv/nvme/sparkyard"


def write(layout: Layout) -> Path:
    """Write all three; the path of `cluster.yaml`."""
    where = state.folder(layout.id)
    (where / "yard.json").write_text(
        json.dumps({"id": layout.id, "count": len(layout.nodes), "topology": layout.topology})
    )
    lines = [f"{node.management} {_host_key(layout, node.name)}\n" for node in layout.nodes]
    (where / "known_hosts").write_text("".join(lines))
    path = where / "cluster.yaml"
    path.write_text(yaml.safe_dump(cluster(layout), sort_keys=False))
    path.chmod(0o600)
    return path


def read(yard_id: str) -> Layout:
    """The layout of a yard that is up. YardError when there is none."""
    try:
        found = json.loads((state.folder(yard_id) / "yard.json").read_text())
    except OSError as error:
        raise state.YardError(f"no yard {yard_id!r} is up") from error
    topology: Topology = found["topology"]
    return plan(found["id"], found["count"], topology)


def cluster(layout: Layout) -> dict[str, object]:
    """Content of `cluster.yaml`: the first node is the head and has the checkpoint."""
    where = state.folder(layout.id)
    head = layout.nodes[0].name
    return {
        "schema": "sparkyard/cluster/v1",
        "topology": layout.topology,
        "head": head,
        "nodes": [
            {
                "name": node.name,
                "address": node.management,
                "user": "root",
                "key": str(where / "id_ed25519"),
                "host_key": _host_key(layout, node.name),
                "root": NODE_ROOT,
                "fabric_address": node.fabric[0].address,
            }
            for node in layout.nodes
        ],
        "checkpoint": {"node": head, "path": "/srv/nvme/checkpoint"},
    }


def _host_key(layout: Layout, name: str) -> str:
    public = (state.folder(layout.id) / "nodes" / name / "ssh_host_ed25519_key.pub").read_text()
    return " ".join(public.split()[:2])
