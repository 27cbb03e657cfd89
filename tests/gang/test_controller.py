"""Controllers that die: `up` in every phase of a boot, and a monitor. What they started is adopted, not repeated."""

from __future__ import annotations

import signal
import time

import httpx
import psutil

from orchestrator.verbs import events_path
from orchestrator.watch.bounds import bounds
from orchestrator.watch.guardian import PULSE_TIMEOUT_S
from orchestrator.watch.policy import Policy
from tests.controllers import LOOK_S, NEWS_S, POINTS, Log, kill, monitor, phase, started
from tests.guarded import guard, serves
from tests.realgang import COMES_BACK_S, RealLab, headline, kept, scheduler, until

SHIPPED = bounds(Policy(), LOOK_S + PULSE_TIMEOUT_S)


def test_up_was_killed_in_each_phase_and_its_boot_adopted(lab: RealLab) -> None:
    """The boot of this lab: at every stage and phase of it the controller was killed and started again."""
    boot = lab.first_boot
    print(f"killed at: {'; '.join(boot.killed)}")
    # a phase that is over within a look may be missed; the stages may not
    assert len(boot.killed) >= len(POINTS) - 1
    assert lab.generation() == boot.generation
    assert boot.guards == {guard(lab, rank).pid for rank in range(3)}, "a rank was started twice"
    assert all(psutil.pid_exists(pid) for pid in boot.guards)
    boots = [found for here in lab.facts().values() for found in here.boots]
    assert {found.generation for found in boots} == {boot.generation}
    assert {found.canary for found in boots if found.smoke} == {True}
    assert lab.generate(30, 8).status_code == httpx.codes.OK
    assert serves(lab)


def test_a_killed_rank_and_killed_monitors(serving: RealLab) -> None:
    """A monitor is killed while the gang is well, the next one in the restart of a rank that was killed.

    There is one restart in all, begun by the second monitor and carried on by the third.
    """
    lab, generation = serving, serving.generation()
    evidence = events_path(lab.place.cluster_file).parent / "evidence"
    first = Log(lab)
    with started(lab, *monitor()) as process:
        until(lambda: first.said("gang: idle"), NEWS_S, "the first monitor finds the gang well")
        kill(process)
    assert lab.generate(30, 8).status_code == httpx.codes.OK
    second = Log(lab)
    with started(lab, *monitor()) as process:
        until(lambda: second.said("gang: idle"), NEWS_S, "the second monitor finds the gang well")
        scheduler(lab, 2).kill()
        named_s = until(
            lambda: second.said("gang: dead rank: spark-3: rank 2"), SHIPPED.dead_s, "the rank is named"
        )
        until(lambda: phase(lab, generation + 1) == "starting", COMES_BACK_S, "the head is started again")
        kill(process)
    third = Log(lab)
    begin = time.monotonic()
    with started(lab, *monitor()) as process:
        carried = f"carrying on with generation {generation + 1}"
        until(lambda: third.said(carried), NEWS_S + SHIPPED.orphan_s, "the boot is carried on")
        carried_s = time.monotonic() - begin
        until(lambda: third.said("it serves again"), COMES_BACK_S, "it serves again")
        process.send_signal(signal.SIGTERM)
        assert process.wait(NEWS_S) in {0, 130}
    print(f"named after {named_s:.1f} s, carried on {carried_s:.1f} s after the start of a monitor")
    assert not third.said("restart: ")
    assert lab.generation() == generation + 1
    found = headline(kept(evidence))
    assert (found["cause"], found["ranks"]) == ("killed", [2])
    assert lab.generate(30, 8).status_code == httpx.codes.OK
    assert serves(lab)
