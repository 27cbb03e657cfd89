"""Is the first boot of an image a slow one: are kernels compiled and tuned on every node already. Pure."""

from __future__ import annotations

from orchestrator.model.facts import ClusterFacts, KernelCache
from orchestrator.model.goal import Goal
from orchestrator.plan import image

COLD_S = 36 * 60
"""A lost tuning cache cost a fleet 36 minutes; compiling what the image does not hold is in it."""


def note(goal: Goal, facts: ClusterFacts) -> str:
    """What a start has to expect beside its usual minutes; empty when every cache is warm, and without containers."""
    if goal.profile.engine.runtime != "docker":
        return ""
    caches = {node.name: _cache(goal, facts, node.name) for node in goal.ranked}
    cold = [name for name, cache in caches.items() if cache is None or cache.tuned_sha256 is None]
    minutes = f"up to {COLD_S // 60} minutes more were reported elsewhere"
    if cold:
        return f"kernel cache cold on {', '.join(cold)}: kernels are compiled and tuned, {minutes}"
    if len({cache.tuned_sha256 for cache in caches.values() if cache is not None}) > 1:
        return f"tuning results differ between the nodes: the engine drops them and tunes again, {minutes}"
    return ""


def _cache(goal: Goal, facts: ClusterFacts, name: str) -> KernelCache | None:
    docker = facts[name].docker if name in facts else None
    if docker is None:
        return None
    made = docker.image(image.content(goal))
    return next((cache for cache in docker.caches if made is not None and cache.key == made.kernels), None)
