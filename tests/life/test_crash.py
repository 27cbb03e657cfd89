"""The controller is killed at every stage boundary and in the middle: `up` finishes, and does nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.verbs import events_path
from tests.standin_engine.lab import ROOT, StandinLab

STAGE_TIMEOUT_S = 180.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinLab]:
    with StandinLab(tmp_path_factory.mktemp("lab"), vocab_size=6000) as running:
        yield running


def events(lab: StandinLab, since: int) -> list[dict]:
    path = events_path(lab.place.cluster_file)
    if not path.exists():
        return []
    lines = path.read_text().splitlines()[since:]
    return [json.loads(line) for line in lines if line.endswith("}")]


def count(lab: StandinLab) -> int:
    path = events_path(lab.place.cluster_file)
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill_when(lab: StandinLab, reached, delay_s: float = 0.0) -> list[dict]:
    """Run `up` and SIGKILL it as soon as ``reached(events)`` holds; the events of that run."""
    since = count(lab)
    process = subprocess.Popen(
        lab.command("up", "--json"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + STAGE_TIMEOUT_S
    while process.poll() is None and time.monotonic() < end and not reached(events(lab, since)):
        time.sleep(0.01)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return events(lab, since)


def stages(found: list[dict]) -> list[str]:
    return [event["title"] for event in found if event["event"] == "StageStarted"]


def done_steps(found: list[dict]) -> list[tuple[str, str]]:
    return [(event["node"], event["what"]) for event in found if event["event"] == "StepDone"]


def finish(lab: StandinLab) -> list[dict]:
    """`up` to the end, then once more: nothing is left to do. The events of the first."""
    since = count(lab)
    code, answer = lab.call("up")
    assert code == 0, answer
    after = events(lab, since)
    assert lab.do("up").data["stages"] == []
    return after


def all_stages(lab: StandinLab) -> list[str]:
    code, plan = lab.call("up", "--dry-run")
    assert code == 0
    return [stage["title"] for stage in plan["stages"]]


@pytest.mark.parametrize("delay_s", [0.0, 0.15])
def test_killed_at_every_stage(lab: StandinLab, delay_s: float) -> None:
    """At the boundary (nothing of the stage was done), and a moment later (some of it was).

    One life cycle, killed again and again: each run goes on from where the one before was killed.
    """
    lab.forget()
    titles = all_stages(lab)
    assert len(titles) > 8
    finished: list[tuple[str, str]] = []
    for title in titles:
        found = kill_when(lab, lambda seen, title=title: title in stages(seen), delay_s)
        # What a killed run had finished and reported is never done again.
        repeated = set(finished) & set(done_steps(found))
        assert not repeated, f"killed in {title!r}: done twice: {repeated}"
        finished += done_steps(found)
    since = count(lab)
    finish(lab)
    assert not set(finished) & set(done_steps(events(lab, since)))


def test_a_running_pack_is_adopted_and_not_repeated(lab: StandinLab) -> None:
    lab.forget()
    before = kill_when(lab, lambda found: sum("start packing" in what for _, what in done_steps(found)) == 3)
    assert "start the workers" not in stages(before)
    after = finish(lab)
    assert not [what for _, what in done_steps(after) if "start packing" in what]
    for here in lab.facts().values():
        for store in (found for found in here.stores if found.complete):
            (job,) = (found for found in here.jobs if found.id == f"pack-{store.store[:16]}")
            assert job.written_bytes < 1.2 * store.bytes + (1 << 20), "the store was written more than once"


def test_a_pack_killed_in_the_middle_resumes(lab: StandinLab) -> None:
    lab.forget()
    kill_when(lab, lambda found: sum("start packing" in what for _, what in done_steps(found)) == 3)
    for name, here in lab.facts().items():
        for job in here.jobs:
            folder = lab.place.node(name) / "jobs" / job.id
            pid = json.loads((folder / "pid.json").read_text())["pid"]
            for child in children(pid):
                os.kill(child, signal.SIGKILL)
    finish(lab)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_an_agent_killed_in_mid_pack_ends_the_run_with_its_node(lab: StandinLab) -> None:
    lab.forget()
    since = count(lab)
    process = subprocess.Popen(
        lab.command("up", "--json"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + STAGE_TIMEOUT_S
    while time.monotonic() < end and not any(
        title.startswith("pack") for title in stages(events(lab, since))
    ):
        time.sleep(0.01)
    (agent,) = agents(lab, "spark-2")
    os.kill(agent, signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    answer = json.loads(out)
    assert process.returncode == 1
    assert {failure["node"] for failure in answer["failures"]} == {"spark-2"}
    finish(lab)


def agents(lab: StandinLab, node: str) -> list[int]:
    """Agents on a channel, not the jobs and ranks that the same program runs."""
    found = []
    for pid in lab.processes():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        is_agent = any(
            word.startswith(str(lab.place.node(node))) and word.endswith(".pyz") for word in words[:4]
        )
        if is_agent and not {"run-job", "run-rank"} & set(words):
            found.append(pid)
    return found


def test_an_ssh_server_that_dies_is_named_and_the_others_are_stopped(lab: StandinLab) -> None:
    lab.forget()
    lab.fault("hang-joining", 2)
    pid = json.loads((lab.place.server("spark-2") / "pid.json").read_text())["pid"]
    since = count(lab)
    process = subprocess.Popen(
        lab.command("up", "--json"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + STAGE_TIMEOUT_S
    while time.monotonic() < end and "start the head" not in stages(events(lab, since)):
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    answer = json.loads(out)
    lab.fault("", 2)
    assert process.returncode == 1
    assert "spark-2" in {failure["node"] for failure in answer["failures"]}
    lab.up()
    alive = {here.node for here in lab.facts().values() for found in here.ranks if found.alive}
    assert alive <= {"spark-2"}, "only the node that could not be reached may still have its rank"
    finish(lab)


def test_no_node_reachable_is_exit_3(lab: StandinLab) -> None:
    from orchestrator.lab import nodes

    nodes.down(lab.place)
    try:
        for words in (("up", "--dry-run"), ("up",), ("status",)):
            code, _ = lab.call(*words)
            assert code == 3, words
    finally:
        lab.up()
