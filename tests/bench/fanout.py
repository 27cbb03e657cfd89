"""Image fan-out against `docker save | ssh | docker load` to one node after another. `python -m tests.bench.fanout`.

On a yard of real Docker engines and OpenSSH whose cables are limited to a named rate, because the machine's own
memory is no cable. Both ways move the same image over the same cables, in turn. Needs root and `install.sh`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml

from orchestrator.errors import SparkyardError
from orchestrator.load import load_profile
from orchestrator.model.cluster import Cluster
from orchestrator.model.event import Event, StepDone
from orchestrator.model.goal import Goal, Package
from orchestrator.model.profile import Profile
from orchestrator.plan import image
from orchestrator.remote.nodes import nodes
from orchestrator.run import WallClock, World, converge
from tests.integration.yard import wire
from tests.integration.yard.session import Yard, network, yard

PROFILE = Path(__file__).resolve().parents[2] / "profiles" / "lab.yaml"
BASELINE_BOUND_S = 1800.0
RATE_MBIT = 150
"""Slow enough that the cables are the limit, not the two cores on which four engines hash and unpack the image. A pair
takes four to six minutes."""


def goal_of(made: Yard, marker: str) -> Goal:
    """A goal whose image content depends on ``marker``, for all nodes of the yard."""
    cluster = Cluster.model_validate(yaml.safe_load(made.cluster.read_text()))
    profile = load_profile(PROFILE)
    body = profile.model_dump(mode="json", by_alias=True)
    body["engine"] |= {"runtime": "docker", "image": None}
    body["parallel"]["tp"] = len(cluster.nodes)
    return Goal(Profile.model_validate(body), cluster, Package(marker * (64 // len(marker)), 1))


def make_image(made: Yard, content: str, layers: int, layer_mib: int, top_mib: int, base: str) -> None:
    """On the first node: ``layers`` layers of random bytes on nothing, or one on ``base``; labelled as ours."""
    folder = made.disk("spark-1") / "build"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lines = [f"FROM {base or 'scratch'}"]
    sizes = [layer_mib] * layers if not base else [top_mib]
    for number, mib in enumerate(sizes):
        with (folder / f"file{number}").open("wb") as file:
            for _ in range(mib):
                file.write(os.urandom(1 << 20))
        lines.append(f"COPY file{number} /data/{'top' if base else ''}{number}")
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    tag = f"sparkyard/engine:{content[:12]}"
    label = f"sparkyard.content={content}"
    made.run(
        "spark-1", "docker", "build", "-q", "--label", label, "-t", tag, "/srv/nvme/build", timeout_s=600
    )
    shutil.rmtree(folder)


def clear(made: Yard) -> None:
    """No image on the workers, nothing published on the head."""
    for node in made.layout.nodes[1:]:
        made.run(node.name, "sh", "-c", "docker images -q | sort -u | xargs -r docker rmi -f >/dev/null")
    shutil.rmtree(made.disk("spark-1") / "sparkyard" / "registry", ignore_errors=True)


def allow_ssh(made: Yard) -> None:
    """The head may log in to the workers over the fabric: what the plain way needs."""
    key = (made.folder / "id_ed25519").read_text()
    made.run("spark-1", "sh", "-c", "umask 077; cat >/root/.ssh/id_ed25519", stdin=key)
    keys = dict(line.split(" ", 1) for line in (made.folder / "known_hosts").read_text().splitlines())
    known = [f"{link.address} {keys[node.management]}" for node in made.layout.nodes for link in node.fabric]
    made.run("spark-1", "sh", "-c", "cat >/root/.ssh/known_hosts", stdin="\n".join(known) + "\n")


def route(made: Yard, name: str) -> str:
    """Address by which the head reaches a worker over the fabric. Neighbours only, or a switch."""
    ours = {link.cable for link in made.layout.nodes[0].fabric}
    return next((link.address for link in made.layout.node(name).fabric if link.cable in ours), "")


def plain(made: Yard, content: str) -> float:
    """The way people do it: seconds."""
    tag = f"sparkyard/engine:{content[:12]}"
    begin = time.monotonic()
    for node in made.layout.nodes[1:]:
        target = route(made, node.name) or node.management
        command = f"docker save {tag} | ssh -o BatchMode=yes root@{target} docker load -q"
        made.run("spark-1", "bash", "-o", "pipefail", "-c", command, timeout_s=BASELINE_BOUND_S)
    return time.monotonic() - begin


async def _ours(made: Yard, goal: Goal, events: list[Event]) -> float:
    asked = nodes(goal.cluster)
    world = World(
        nodes=asked,
        cluster=goal.cluster,
        emit=events.append,
        clock=WallClock(),
        holder=f"fanout {os.getpid()}",
        docker=True,
        strict_conformance=True,
    )
    begin = time.monotonic()
    try:
        outcome = await converge(world, lambda facts: image.decide(goal, facts))
    finally:
        await asyncio.gather(*(node.close() for node in asked.values()))
    if outcome.failures:
        raise SparkyardError("\n".join(f"{failure.node}: {failure.message}" for failure in outcome.failures))
    return time.monotonic() - begin


def ours(made: Yard, goal: Goal) -> tuple[float, list[Event]]:
    """Seconds from the first look until every node has the image, verified; and what happened."""
    events: list[Event] = []
    with network(made.layout.controller):
        return asyncio.run(_ours(made, goal, events)), events


def received(made: Yard) -> dict[str, int]:
    """Fabric bytes that each node has received so far."""
    return {node.name: wire.received_bytes(made, node.name) for node in made.layout.nodes}


def main() -> int:
    """0: measured. The ratio is printed, not judged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", choices=("switch", "ring", "triangle"), default="switch")
    parser.add_argument("--nodes", type=int, default=4, help="the head and its workers")
    parser.add_argument("--rate-mbit", type=int, default=RATE_MBIT, help="of each cable, each way")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--layer-mib", type=int, default=128)
    parser.add_argument("--change-mib", type=int, default=64, help="size of the layer that changes")
    parser.add_argument("--pairs", type=int, default=2, help="interleaved runs of both ways")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # so that the yard is taken down
    with yard(f"f{os.getpid() % 1_000_000}", asked.nodes, asked.topology, docker=True) as made:
        result = measure(made, asked)
    if asked.json:
        print(json.dumps(result, indent=1))
    else:
        for key, value in result.items():
            print(f"{key:26} {value}")
    return 0


def measure(made: Yard, asked: argparse.Namespace) -> dict[str, object]:
    """Everything, as one record."""
    first, second = goal_of(made, "ab"), goal_of(made, "cd")
    content = image.content(first)
    make_image(made, content, asked.layers, asked.layer_mib, 0, "")
    allow_ssh(made)
    wire.shape_all(made, asked.rate_mbit)
    plain_s, ours_s = [], []
    sent: dict[str, int] = {}
    steps: list[StepDone] = []
    for _ in range(asked.pairs):
        clear(made)
        plain_s.append(plain(made, content))
        clear(made)
        before = received(made)
        seconds, events = ours(made, first)
        ours_s.append(seconds)
        steps = [one for one in events if isinstance(one, StepDone)]
        sent = {name: count - before[name] for name, count in received(made).items()}
    make_image(made, image.content(second), 1, 0, asked.change_mib, f"sparkyard/engine:{content[:12]}")
    before = received(made)
    change_s, _ = ours(made, second)
    changed = {name: count - before[name] for name, count in received(made).items()}
    workers = [node.name for node in made.layout.nodes[1:]]
    layer = asked.change_mib << 20
    return {
        "schema": "sparkyard/bench-fanout/v1",
        "topology": f"{asked.topology}, {asked.nodes} nodes, two cables a node",
        "rate_mbit": asked.rate_mbit,
        "image_bytes": asked.layers * (asked.layer_mib << 20),
        "plain_s": [round(value, 1) for value in plain_s],
        "ours_s": [round(value, 1) for value in ours_s],
        "steps_s": {f"{one.node}: {one.what}": round(one.seconds, 1) for one in steps},
        "times_faster": round(statistics.median(plain_s) / statistics.median(ours_s), 2),
        "received_bytes": {name: sent[name] for name in workers},
        "change_layer_bytes": layer,
        "change_received_bytes": {name: changed[name] for name in workers},
        "change_worst_ratio": round(max(changed[name] for name in workers) / layer, 3),
        "change_s": round(change_s, 1),
        "machine": subprocess.run(
            ["uname", "-rm"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "cpus": os.cpu_count(),
    }


if __name__ == "__main__":
    sys.exit(main())
