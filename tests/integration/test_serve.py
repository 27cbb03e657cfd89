"""Gangs as containers of real Docker engines, with a stand-in for the engine inside the real image.

Two deployments share three nodes; each test leaves the first one serving, the last one stops both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from node_agent.actions import containers as product
from orchestrator.model.profile import Profile
from tests.integration.fleet import NO_SPARKS, Fleet, deployment

MEMBERS = ("spark-1", "spark-2", "spark-4")
"""Those that a cable joins with the head, in a ring of four."""
KEY_FILE = "/srv/nvme/api-key"
KEY = "sk-planted-5f1d0c7be2a94c3d"
STRANGER = "sparkyard-first-g9-r1-spark-2"
ROOT = "/srv/nvme/sparkyard"
ACCOUNT = 4242
"""Of an ordinary account, as uid and gid."""
CAPABILITIES = """
import os, sys
from sparkyard_engine.engram import native
rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
open(sys.argv[1] + "/written", "w").close()
print(os.getuid(), *(rows[key].strip() for key in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")))
print(hex(native.library().crc32c(b"123456789")))
"""
IPC_LOCK = 1 << 14
"""linux/capability.h"""
BEFORE_A_START = (
    "build the image",
    "fan the image out",
    "export the checkpoint",
    "reach the checkpoint",
    "pack tables and slices",
)
ACCEPTED = [word for check in NO_SPARKS for word in ("--ignore", check)]


@pytest.fixture(scope="module")
def first(fleet: Fleet) -> Iterator[Fleet]:
    """A deployment with an API key that serves; stopped at the end."""
    fleet.yard.run("spark-1", "sh", "-c", f"umask 077; cat >{KEY_FILE}", stdin=f"{KEY}\n")
    made = deployment(fleet, "first", MEMBERS, 31000, KEY_FILE)
    up(made)
    yield made
    made.do("stop")


@pytest.fixture(scope="module")
def second(fleet: Fleet) -> Iterator[Fleet]:
    """Another one on the same nodes; stopped at the end."""
    made = deployment(fleet, "second", MEMBERS, 32000, root="/srv/nvme/second")
    yield made
    made.do("stop")


def containers(made: Fleet, name: str = "") -> dict[str, list[dict[str, Any]]]:
    """Running containers by node, as `docker inspect` shows them; those of one deployment, or all."""
    wanted = ["--filter", f"label=sparkyard.deployment={name}"] if name else []
    found = {}
    for node in MEMBERS:
        ids = made.yard.run(node, "docker", "ps", "--quiet", "--no-trunc", *wanted).split()
        found[node] = json.loads(made.yard.run(node, "docker", "inspect", *ids)) if ids else []
    return found


def ids(made: Fleet) -> dict[str, list[str]]:
    """Ids of the running containers of a deployment, by node."""
    here = containers(made, made.profile.name)
    return {node: sorted(str(one["Id"]) for one in ones) for node, ones in here.items()}


def status(made: Fleet) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of `status --json`."""
    done = made.command_line("status", "--json")
    return done.returncode, json.loads(done.stdout)


def up(made: Fleet) -> None:
    answer = made.do("up")
    assert answer.exit_code == 0, answer.data["failures"]
    assert made.titles(made.do("up")) == []


def test_ranks_are_containers_known_by_their_labels(first: Fleet) -> None:
    code, said = status(first)
    assert code == 0, said
    for rank, node in enumerate(MEMBERS):
        (one,) = containers(first, "first")[node]
        labels, host = one["Config"]["Labels"], one["HostConfig"]
        assert (labels["sparkyard.rank"], labels["sparkyard.node"]) == (str(rank), node)
        assert labels["sparkyard.generation"] == str(said["generation"])
        assert len(labels["sparkyard.spec"]) == 64
        assert host["RestartPolicy"]["Name"] in {"", "no"}
        assert not host["Privileged"]


def test_the_key_opens_the_api_and_nothing_else_does(first: Fleet) -> None:
    def code(*headers: str) -> str:
        body = '{"model": "m", "prompt": "a b", "max_tokens": 2}'
        argv = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *headers, "-d", body]
        return first.yard.run("spark-1", *argv, "http://127.0.0.1:31000/v1/completions").strip()

    assert code() == "401"
    assert code("-H", f"Authorization: Bearer {KEY}") == "200"


def test_two_deployments_never_touch_each_other_nor_a_stranger(first: Fleet, second: Fleet) -> None:
    image = containers(first, "first")["spark-2"][0]["Config"]["Image"]
    run = ["docker", "run", "--detach", "--network", "none", "--name", STRANGER, "--entrypoint", "sleep"]
    stranger = first.yard.run("spark-2", *run, image, "600").strip()
    before = ids(first)
    up(second)
    assert second.do("restart").exit_code == 0
    assert second.do("stop").exit_code == 0
    assert ids(second) == {node: [] for node in MEMBERS}
    assert ids(first) == before
    assert status(first)[0] == 0
    answer = second.do("up")
    assert answer.exit_code == 0, answer.data["failures"]
    assert not {*BEFORE_A_START} & {*second.titles(answer)}  # image, share and stores are there still
    other = ids(second)
    assert first.do("restart").exit_code == 0
    assert ids(second) == other
    assert status(second)[0] == 0
    running = first.yard.run("spark-2", "docker", "ps", "--quiet", "--no-trunc").split()
    assert stranger in running
    first.yard.run("spark-2", "docker", "rm", "--force", stranger)


def test_restart_is_the_next_generation_and_the_older_containers_are_gone(first: Fleet) -> None:
    before, generation = ids(first), status(first)[1]["generation"]
    assert first.do("restart").exit_code == 0
    after = ids(first)
    assert status(first)[1]["generation"] == generation + 1
    assert all(len(after[node]) == 1 and after[node] != before[node] for node in MEMBERS)


def test_a_container_that_was_killed_is_named_and_up_makes_the_next_generation(first: Fleet) -> None:
    generation = status(first)[1]["generation"]
    first.yard.run("spark-4", "docker", "kill", ids(first)["spark-4"][0])
    code, said = status(first)
    assert code == 1
    dead = [rank["node"] for rank in said["ranks"] if not rank["alive"]]
    assert "spark-4" in dead
    up(first)
    code, said = status(first)
    assert (code, said["generation"]) == (0, generation + 1)


def test_a_new_deployment_that_fails_leaves_its_evidence_and_the_last_good_is_back_with_one_verb(
    first: Fleet,
) -> None:
    """Another profile replaces the one that serves; a rank of it dies while it loads."""
    generation = status(first)[1]["generation"]
    body = first.profile.model_dump(mode="json", by_alias=True)
    body["model"]["served_name"] = "another"
    changed = replace(first, profile=Profile.model_validate(body))
    fault = f"for home in {ROOT}/cache/*/; do echo 'die-loading 1' >$home/fault; done"
    first.yard.run("spark-2", "sh", "-c", fault)
    try:
        done = changed.command_line("serve", "--yes", "--json", *ACCEPTED)
    finally:
        first.yard.run("spark-2", "sh", "-c", f"rm {ROOT}/cache/*/fault")
    assert done.returncode == 1, done.stderr
    failures = json.loads(done.stdout)["failures"]
    assert failures[0]["node"] == "spark-2"
    assert "rank 1" in failures[0]["message"]
    assert "serve --last-good" in done.stderr
    assert ids(first) == {node: [] for node in MEMBERS}
    logs = list((first.cluster.parent / ".sparkyard" / "evidence").glob("*/*/engine.log"))
    assert any("injected death while loading" in log.read_text() for log in logs)
    done = changed.command_line("serve", "--last-good", "--yes", "--json", *ACCEPTED)
    assert done.returncode == 0, done.stderr
    assert f"as of generation {generation}" in done.stderr
    code, said = status(first)
    assert (code, said["generation"], said["model"]) == (0, generation + 2, first.profile.model.served_name)
    assert {node: len(found) for node, found in ids(first).items()} == dict.fromkeys(MEMBERS, 1)


def test_a_container_of_an_ordinary_account_has_no_capability_but_the_one_it_needs(first: Fleet) -> None:
    """The agent of a yard is root; what it gives to another account is run by its own arguments all the same."""
    image = containers(first, "first")["spark-2"][0]["Config"]["Image"]
    made = f"mkdir -p {ROOT}/ordinary && chown {ACCOUNT}:{ACCOUNT} {ROOT}/ordinary"
    first.yard.run("spark-2", "sh", "-c", made)
    argv = product.account_arguments(ACCOUNT, ACCOUNT)
    argv += product.run_arguments(
        {}, image, {f"{ROOT}/ordinary": True}, {}, gpu=False, devices=(), seccomp=f"{ROOT}/seccomp.json"
    )
    command = ["docker", "run", "--rm", *argv, "-c", CAPABILITIES, f"{ROOT}/ordinary"]
    said, computed = first.yard.run("spark-2", *command, timeout_s=120).splitlines()
    uid, effective, permitted, bounding, no_new, seccomp = said.split()
    assert (uid, no_new, seccomp) == (str(ACCOUNT), "1", "2")  # 2: filtered
    assert int(effective, 16) | int(permitted, 16) == 0
    assert int(bounding, 16) == IPC_LOCK
    assert computed == hex(0xE3069283)  # CRC-32C of RFC 3720: the native reader works in it
    assert first.yard.run("spark-2", "stat", "-c", "%u", f"{ROOT}/ordinary/written").strip() == str(ACCOUNT)
    first.yard.run("spark-2", "rm", "-r", f"{ROOT}/ordinary")


def test_the_key_is_nowhere_but_in_its_file(first: Fleet) -> None:
    assert first.command_line("logs", "-n", "500").returncode == 0
    bundle = first.cluster.parent / "bundle.json"
    first.command_line("doctor", "--bundle", str(bundle))
    assert bundle.exists()
    for node in MEMBERS:
        everything = (
            "docker inspect $(docker ps -aq); for id in $(docker ps -aq); do docker logs $id; done; ps axeww; "
            "docker image inspect $(docker image ls -q); cat /run/dockerd.log"
        )
        said = first.yard.run(node, "sh", "-c", f"({everything}) 2>&1", check=False)
        assert "sparkyard.deployment" in said  # it did look
        assert KEY not in said
        places = [ROOT, "/srv/nvme/docker/containers", "/var/log", *([KEY_FILE] if node == "spark-1" else [])]
        found = first.yard.run(node, "grep", "-rslF", "-f", "/dev/stdin", *places, stdin=KEY, check=False)
        assert found.split() == places[3:]  # the file itself, and nothing else
    here = [path for path in first.cluster.parent.rglob("*") if path.is_file()]
    assert any(path.name == "events.jsonl" for path in here)
    assert not [path for path in here if KEY.encode() in path.read_bytes()]
    assert first.yard.run("spark-1", "cat", KEY_FILE).strip() == KEY


def test_stop_ends_every_container(first: Fleet, second: Fleet) -> None:
    for made in (first, second):
        answer = made.do("stop")
        assert answer.exit_code == 0, answer.data["failures"]
        assert status(made)[0] == 1
    assert containers(first) == {node: [] for node in MEMBERS}
