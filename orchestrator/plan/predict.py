"""What an action changes. Plan, dry run and simulator come from it, and it is held to the truth after every stage."""

from __future__ import annotations

from typing import Any, assert_never

from orchestrator.model.facts import (
    PHASES,
    BootFacts,
    ClusterFacts,
    Desired,
    DockerFacts,
    ImageFacts,
    JobFacts,
    NodeFacts,
    ProofFacts,
    RankFacts,
    ShareFacts,
    StoreFacts,
)
from orchestrator.model.step import (
    Action,
    AskCanary,
    AttachCheckpoint,
    BuildImage,
    Condition,
    DetachCheckpoint,
    ExportCheckpoint,
    FetchBlob,
    FetchDone,
    InstallEngine,
    MemoryBack,
    OfferImage,
    OpenGate,
    PackDone,
    ProveCheckpoint,
    PullImage,
    PutBlob,
    RankAt,
    RunSmoke,
    SetDesired,
    Stage,
    StartFetch,
    StartPack,
    StartRank,
    StopRank,
    UnexportCheckpoint,
)

STOPPED = "stopped"
"""Why a rank has ended in a prediction. A node gives the guard's words too, so the two can be told apart."""
FETCH_JOB = "fetch"
"""Id and kind of the job; a node fetches one checkpoint at a time."""


def after_action(here: NodeFacts, action: Action, cluster: ClusterFacts) -> NodeFacts:
    """Facts of the node once ``action`` has succeeded on it."""
    match action:
        case PutBlob(digest=digest) | FetchBlob(digest=digest):
            return here.model_copy(update={"blobs": tuple(sorted({*here.blobs, digest}))})
        case InstallEngine(digest=digest):
            return here.model_copy(update={"engines": tuple(sorted({*here.engines, digest}))})
        case BuildImage(content=content) | PullImage(content=content):
            return _with_image(here, content)
        case OfferImage(content=content):
            docker = here.docker or DockerFacts()
            return here.model_copy(update={"docker": docker.model_copy(update={"offered": content})})
        case StartFetch(spec=spec):
            job = JobFacts(id=FETCH_JOB, kind=FETCH_JOB, spec=spec, state="running")
            kept = tuple(found for found in here.jobs if found.id != job.id)
            return here.model_copy(update={"jobs": (*kept, job)})
        case ExportCheckpoint(clients=clients):
            return here.model_copy(update={"exported": tuple(sorted(clients))})
        case UnexportCheckpoint():
            return here.model_copy(update={"exported": ()})
        case DetachCheckpoint():
            return here.model_copy(update={"share": None, "proof": None, "checkpoint": None})
        case AttachCheckpoint(mode=mode, source=source, server=server, options=options):
            share = ShareFacts(mode=mode, source=source, path="", server=server, asked=options)
            owner = cluster.get(source.partition(":")[0], here)
            return here.model_copy(update={"share": share, "checkpoint": here.checkpoint or owner.checkpoint})
        case ProveCheckpoint(index_sha256=index, seed=seed, blocks=blocks):
            return here.model_copy(update={"proof": ProofFacts(index_sha256=index, seed=seed, blocks=blocks)})
        case StartPack(store=store, spec=spec):
            job = JobFacts(id=f"pack-{store[:16]}", kind="pack", spec=spec, state="running")
            kept = tuple(found for found in here.jobs if found.id != job.id)
            return here.model_copy(update={"jobs": (*kept, job)})
        case SetDesired(deployment=deployment, generation=generation, state=state, profile=profile, why=why):
            desired = Desired(
                deployment=deployment, generation=generation, state=state, profile=profile, why=why
            )
            return here.model_copy(update={"desired": desired})
        case StartRank():
            return _with_rank(here, action)
        case OpenGate(deployment=deployment, generation=generation):
            return _change_rank(here, deployment, generation, 0, {"gate_open": True})
        case StopRank(deployment=deployment, generation=generation, rank=rank):
            changes = {"alive": False, "phase": "ended", "ended": STOPPED}
            return _change_rank(here, deployment, generation, rank, changes)
        case AskCanary(deployment=deployment, generation=generation):
            return _change_boot(here, deployment, generation, {"canary": True})
        case RunSmoke(deployment=deployment, generation=generation):
            return _change_boot(here, deployment, generation, {"smoke": True})
        case _:
            assert_never(action)


def after_wait(here: NodeFacts, until: Condition) -> NodeFacts:
    """Facts of the node once the condition holds."""
    match until:
        case FetchDone(spec=spec):
            jobs = tuple(
                job.model_copy(update={"state": "done"}) if (job.id, job.spec) == (FETCH_JOB, spec) else job
                for job in here.jobs
            )
            return here.model_copy(update={"jobs": jobs})
        case PackDone(store=store, what=what):
            jobs = tuple(
                job.model_copy(update={"state": "done"}) if job.id == f"pack-{store[:16]}" else job
                for job in here.jobs
            )
            kept = tuple(found for found in here.stores if found.store != store)
            made = StoreFacts(store=store, kind=what, path="", complete=True)
            return here.model_copy(update={"jobs": jobs, "stores": (*kept, made)})
        case RankAt(deployment=deployment, generation=generation, rank=rank, phase=phase):
            here = _change_rank(here, deployment, generation, rank, {"phase": phase})
            return _prove_rank(here, deployment, generation, rank) if phase == "ready" else here
        case MemoryBack(available_bytes=wanted):
            memory = here.memory.model_copy(update={"available_bytes": wanted})
            return here.model_copy(update={"memory": memory})
        case _:
            assert_never(until)


def after_stage(facts: ClusterFacts, stage: Stage) -> ClusterFacts:
    """Facts of all nodes once every step has succeeded and every wait holds."""
    result = dict(facts)
    for step in stage.steps:
        result[step.node] = after_action(result[step.node], step.action, facts)
    for wait in stage.waits:
        result[wait.node] = after_wait(result[wait.node], wait.until)
    return result


def _with_image(here: NodeFacts, content: str) -> NodeFacts:
    docker = here.docker or DockerFacts()
    made = ImageFacts(content=content, platform="", rootfs="0" * 64)
    kept = tuple(found for found in docker.images if found.content != content)
    return here.model_copy(update={"docker": docker.model_copy(update={"images": (*kept, made)})})


def _with_rank(here: NodeFacts, action: StartRank) -> NodeFacts:
    rank = RankFacts(
        deployment=action.deployment,
        generation=action.generation,
        rank=action.rank,
        spec=action.spec,
        alive=True,
        phase="starting",
        store=str(action.body.get("plugin", {}).get("engram", {}).get("store", "")).rpartition("/")[2]
        or None,
    )
    kept = tuple(
        found
        for found in here.ranks
        if (found.deployment, found.generation, found.rank) != (rank.deployment, rank.generation, rank.rank)
    )
    boots = here.boots
    if here.boot(action.deployment, action.generation) is None:
        boot = BootFacts(
            deployment=action.deployment,
            generation=action.generation,
            memory_before_bytes=here.memory.available_bytes,
        )
        boots = (*boots, boot)
    return here.model_copy(update={"ranks": (*kept, rank), "boots": boots})


def _change_rank(
    here: NodeFacts, deployment: str, generation: int, rank: int, changes: dict[str, Any]
) -> NodeFacts:
    ranks = tuple(
        found.model_copy(update=changes)
        if (found.deployment, found.generation, found.rank) == (deployment, generation, rank)
        else found
        for found in here.ranks
    )
    return here.model_copy(update={"ranks": ranks})


def _change_boot(here: NodeFacts, deployment: str, generation: int, changes: dict[str, Any]) -> NodeFacts:
    boots = tuple(
        found.model_copy(update=changes)
        if (found.deployment, found.generation) == (deployment, generation)
        else found
        for found in here.boots
    )
    return here.model_copy(update={"boots": boots})


def _prove_rank(here: NodeFacts, deployment: str, generation: int, rank: int) -> NodeFacts:
    """A rank that serves has attached the tables that its spec names."""
    found = here.rank(deployment, rank, generation)
    return _change_rank(
        here, deployment, generation, rank, {"proven_store": found.store if found is not None else None}
    )


MEASURED = (
    "memory.available_bytes",
    "proof.blocks_sha256",
    "ranks[].phase: it moves on by itself; what a wait asked for is checked by the wait",
    "ranks[].ended: the words, not the fact",
    "boots[].memory_before_bytes",
    "docker.images[].rootfs and .config: outputs of the build, compared between nodes",
    "docker.images[].kernels, docker.caches: they only say how long a start will take",
    "docker.offered: the offer ends by itself when its readers are done",
)
"""Fields that `decide` reads and that no prediction can know. Everything else it reads must come true exactly."""


def decided(here: NodeFacts) -> dict[str, Any]:
    """The fields that any `decide` reads, without the measured ones: what is held against the truth."""
    return {
        "engines": here.engines,
        "blobs": here.blobs,
        "share": here.share
        and (
            here.share.mode,
            here.share.source,
            here.share.server,
            here.share.asked,
            here.share.problem,
        ),
        "exported": here.exported,
        "checkpoint": here.checkpoint.index_sha256 if here.checkpoint else None,
        "proof": (here.proof.index_sha256, here.proof.seed, here.proof.blocks) if here.proof else None,
        "stores": sorted(store.store for store in here.stores if store.complete),
        "jobs": sorted((job.id, job.spec, job.state) for job in here.jobs if job.kind == "pack"),
        "images": sorted(image.content for image in here.docker.images) if here.docker else [],
        "desired": here.desired.model_dump() if here.desired else None,
        "ranks": sorted(
            (found.deployment, found.generation, found.rank, found.spec, found.alive, found.gate_open)
            for found in here.ranks
        ),
        "boots": sorted((boot.deployment, boot.generation, boot.canary, boot.smoke) for boot in here.boots),
    }


def missed(predicted: NodeFacts, observed: NodeFacts) -> list[tuple[str, str, str]]:
    """Fields that did not come true: (name, predicted, observed).

    A rank that ended by itself is not among them: that is a fault of the world, which `decide` reports by name.
    """
    told, seen = decided(predicted), decided(observed)
    died = {
        (rank.deployment, rank.generation, rank.rank)
        for rank in predicted.ranks
        if rank.alive
        and (now := observed.rank(rank.deployment, rank.rank, rank.generation))
        and not now.alive
    }
    for values in (told, seen):
        values["ranks"] = [rank for rank in values["ranks"] if rank[:3] not in died]
    return [(key, str(value), str(seen[key])) for key, value in told.items() if seen[key] != value]


def reached(found: RankFacts, until: RankAt) -> bool:
    """True when a rank is at the phase or later, and alive."""
    return found.alive and PHASES.index(found.phase) >= PHASES.index(until.phase)
