"""Profiles and cluster files for tests that need no machine."""

from __future__ import annotations

from functools import cache

from orchestrator.load import load_profile
from orchestrator.model.cluster import Cluster
from orchestrator.model.profile import Profile


@cache
def lab_profile() -> Profile:
    """The shipped lab profile."""
    return load_profile("lab")


@cache
def lab_cluster(nodes: int = 3) -> Cluster:
    """Nodes on one host, as the lab writes them."""
    return Cluster.model_validate(
        {
            "schema": "sparkyard/cluster/v1",
            "topology": "single-host",
            "head": "spark-1",
            "checkpoint": {"node": "spark-1", "path": "/checkpoint"},
            "nodes": [
                {
                    "name": f"spark-{number}",
                    "root": f"/yard/spark-{number}",
                    "port_offset": 40 * number,
                    "engine_python": "/engine/bin/python",
                }
                for number in range(1, nodes + 1)
            ],
        }
    )
