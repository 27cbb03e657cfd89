"""The nodes of a cluster file as things that can be asked."""

from __future__ import annotations

from functools import partial

from orchestrator.model.cluster import Cluster
from orchestrator.remote import local, ssh
from orchestrator.remote.channel import AgentNode


def nodes(cluster: Cluster) -> dict[str, AgentNode]:
    """One `AgentNode` a node; nothing is connected yet."""
    return {
        node.name: AgentNode(
            node.name,
            {"root": node.root, "python": node.python, "recorded": node.recorded},
            local.dial if node.transport == "local" else partial(ssh.dial, node),
        )
        for node in cluster.nodes
    }
