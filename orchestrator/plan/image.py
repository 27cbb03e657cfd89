"""build with the runtime `docker`: one image, built once on the head, the same on every node."""

from __future__ import annotations

from orchestrator.model.facts import ClusterFacts, ImageFacts, NodeFacts
from orchestrator.model.frozen import identity
from orchestrator.model.goal import Goal
from orchestrator.model.step import (
    Blocked,
    BuildImage,
    Decision,
    Failure,
    InstallEngine,
    OfferImage,
    PullImage,
    PutBlob,
    Stage,
    Step,
)
from orchestrator.plan.fanout import Port, Way, tree
from orchestrator.plan.missing import unanswered

PUT_BOUND_S = 60.0
INSTALL_BOUND_S = 120.0
BUILD_BOUND_S = 6 * 3600.0
"""The base, 18 to 33 GB, may have to come from the internet, and the first build compiles 160 files of FlashInfer with
two jobs (a guess: one to three hours, once). Later builds take minutes."""
OFFER_BOUND_S = 1200.0
"""`docker save` of 33 GB reads and writes it once: minutes on NVMe."""
PULL_BOUND_S = 3600.0
IDLE_S = 120.0
"""An offer ends when nobody asked for this long."""
STEP_BYTES = 8 << 30
"""What a node loses at most when its pull is interrupted and its engine forgets unfinished images."""
FANOUT_PORT = 46123
"""On the fabric addresses, for the length of a fan-out (docs/security.md)."""
PLATFORM = ""
"""Empty: the head's own. All nodes are of one kind."""


def content(goal: Goal) -> str:
    """Digest of everything that goes into the image: the label by which nodes are compared."""
    return identity({"engine": goal.package.digest, "base": goal.profile.engine.image or ""})


def decide(goal: Goal, facts: ClusterFacts) -> Decision:
    """The head gets the package and builds; then all that lack the image pull it at once, over the fast links."""
    if blocked := unanswered(goal, facts) or _engines_fault(goal, facts):
        return blocked
    wanted, head = content(goal), goal.head.name
    lacking = [node.name for node in goal.ranked if _image(facts, node.name, wanted) is None]
    if head in lacking:
        return _build(goal, facts)
    if not lacking:
        return _compare(goal, facts)
    ways, cut_off = tree(head, {name: _ports(facts[name]) for name in (head, *lacking)})
    if cut_off:  # a ring: what lies between the head and them passes it on, image or not
        ways, cut_off = tree(head, {node.name: _ports(facts[node.name]) for node in goal.ranked})
    if cut_off:
        return Blocked(
            tuple(
                Failure(
                    name,
                    "refused",
                    f"no link leads from {head} or from a node behind it to {name}",
                    "check the cables and addresses with doctor",
                )
                for name in cut_off
            )
        )
    docker = facts[head].docker
    if docker is None or docker.offered != wanted:
        return Stage(
            "offer the image on the fast links",
            (Step(head, _offer(ways[head], wanted), _lack(lacking), OFFER_BOUND_S),),
        )
    return Stage(
        "fan the image out",
        tuple(
            Step(
                name,
                _pull(way, wanted, head),
                "lacks the image" if name in lacking else "passes it on",
                PULL_BOUND_S,
            )
            for name, way in ways.items()
            if name != head and (name in lacking or way.readers)
        ),
    )


def _lack(names: list[str]) -> str:
    return f"{', '.join(names)} lack{'s' if len(names) == 1 else ''} it"


def _image(facts: ClusterFacts, name: str, wanted: str) -> ImageFacts | None:
    docker = facts[name].docker
    return docker.image(wanted) if docker else None


def _ports(here: NodeFacts) -> list[Port]:
    return [Port(port.address, port.speed_mbit) for port in here.ports]


def _engines_fault(goal: Goal, facts: ClusterFacts) -> Blocked | None:
    faults = []
    for node in goal.ranked:
        docker = facts[node.name].docker
        if docker is None:
            faults.append(
                Failure(node.name, "refused", "no Docker client is installed", "install the Docker engine")
            )
        elif docker.problem:
            faults.append(
                Failure(node.name, "refused", docker.problem, "start the Docker engine, see doctor")
            )
    return Blocked(tuple(faults)) if faults else None


def _build(goal: Goal, facts: ClusterFacts) -> Stage:
    head, package = goal.head.name, goal.package
    here = facts[head]
    if package.digest not in here.engines and package.digest not in here.blobs:
        put = PutBlob(package.digest, package.size_bytes)
        return Stage(
            "send the engine package to the head", (Step(head, put, "no image, no package", PUT_BOUND_S),)
        )
    if package.digest not in here.engines:
        install = InstallEngine(package.digest)
        return Stage(
            "unpack the engine package", (Step(head, install, "has it, not unpacked", INSTALL_BOUND_S),)
        )
    build = BuildImage(
        content(goal), package.digest, goal.profile.engine.image or "", PLATFORM, BUILD_BOUND_S
    )
    return Stage("build the image", (Step(head, build, "no node has this image yet", BUILD_BOUND_S),))


def _offer(way: Way, wanted: str) -> OfferImage:
    body = {"content": wanted, "readers": way.readers, "listen": way.listen}
    return OfferImage(
        wanted, way.listen, FANOUT_PORT, way.readers, STEP_BYTES, IDLE_S, OFFER_BOUND_S, identity(body)
    )


def _pull(way: Way, wanted: str, origin: str) -> PullImage:
    sources = tuple(
        tuple(f"{address}:{FANOUT_PORT}" for address in source.addresses) for source in way.sources
    )
    listen = way.listen if way.readers else ()
    body = {"content": wanted, "sources": sources, "readers": way.readers}
    return PullImage(
        wanted, origin, sources, listen, FANOUT_PORT, way.readers, IDLE_S, PULL_BOUND_S, identity(body)
    )


def _compare(goal: Goal, facts: ClusterFacts) -> Blocked | None:
    """Blocks when two nodes have different images under the same label: layers, platform, config where it is told."""
    head = goal.head.name
    wanted = _image(facts, head, content(goal))
    if wanted is None:
        raise AssertionError("the head was just found to have it")
    wrong = []
    for node in goal.ranked:
        seen = _image(facts, node.name, content(goal))
        if seen is None or not seen.tags or not wanted.tags:
            continue  # predicted: the digests of an output are not known before
        configs = {image.config for image in (seen, wanted)} - {None}
        if (seen.rootfs, seen.platform) != (wanted.rootfs, wanted.platform) or len(configs) > 1:
            text = f"has another image than {head} under the label {content(goal)[:12]}: layers {seen.rootfs[:12]}, "
            wrong.append(
                Failure(
                    node.name,
                    "failed",
                    f"{text}{seen.platform}; expected {wanted.rootfs[:12]}, {wanted.platform}",
                    f"remove it there (docker rmi {seen.tags[0]}) and run build again",
                )
            )
    return Blocked(tuple(wrong)) if wrong else None
