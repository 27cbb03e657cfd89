"""fetch: the pinned revision of the checkpoint lies on the node that shares it, every file checked."""

from __future__ import annotations

from orchestrator.model.facts import ClusterFacts
from orchestrator.model.frozen import identity
from orchestrator.model.goal import Goal
from orchestrator.model.step import Blocked, Decision, Failure, FetchDone, Stage, StartFetch, Step, Wait
from orchestrator.plan import image
from orchestrator.plan.predict import FETCH_JOB

START_BOUND_S = 60.0
FETCH_BOUND_S = 24 * 3600.0
"""510 GB at 10 MB/s take 14 hours."""


def decide(goal: Goal, facts: ClusterFacts) -> Decision:
    """Start the job, or adopt the one that runs, and wait. It runs where the engine runs: there is the hub's client."""
    checkpoint, owner = goal.cluster.checkpoint, goal.owner
    if checkpoint is None:
        text = "the cluster file names no checkpoint"
        return Blocked(
            (Failure(owner.name, "refused", text, "set checkpoint: {node, path} in the cluster file"),)
        )
    if owner.name not in facts:
        return Blocked((Failure(owner.name, "unreachable", "did not answer", "sparkyard doctor"),))
    here = facts[owner.name]
    model = goal.profile.model
    contained = goal.profile.engine.runtime == "docker"
    content = image.content(goal) if contained else ""
    spec = identity({"repository": model.name, "revision": model.revision, "path": checkpoint.path})
    job = next((found for found in here.jobs if (found.id, found.spec) == (FETCH_JOB, spec)), None)
    if job is not None and job.state == "done":
        return None
    if contained and (here.docker is None or here.docker.image(content) is None):
        text = "has no engine image, which holds the hub's client"
        return Blocked((Failure(owner.name, "refused", text, "run build first"),))
    if not contained and goal.package.digest not in here.engines:
        return Blocked((Failure(owner.name, "refused", "has no engine package", "run build first"),))
    steps: tuple[Step, ...] = ()
    if job is None or job.state != "running":
        action = StartFetch(
            model.name,
            model.revision,
            checkpoint.path,
            goal.package.digest,
            owner.engine_python or "python3",
            content,
            spec,
        )
        steps = (Step(owner.name, action, "was never fetched whole by sparkyard", START_BOUND_S),)
    wait = Wait(owner.name, FetchDone(spec), "the checkpoint's files", FETCH_BOUND_S)
    return Stage("fetch the checkpoint", steps, (wait,))
