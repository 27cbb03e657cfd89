"""Which way the checkpoint is read when cables come and go, and who else reads through the same export. Pure."""

from __future__ import annotations

from orchestrator.model.cluster import Cluster
from orchestrator.model.facts import ClusterFacts, PortFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import AttachCheckpoint, ExportCheckpoint, Stage
from orchestrator.plan import share
from orchestrator.run import dry_run
from tests.clusters import lab_profile
from tests.sim import fresh, make_goal

FAST_MBIT, SLOW_MBIT = 200_000, 10_000


def goal(count: int, tp: int, **options: object) -> Goal:
    """`count` nodes on a switch, of which the first `tp` serve; ``options`` of the profile's share."""
    nodes = [
        {"name": f"spark-{number}", "root": "/srv/sparkyard", "address": f"10.77.0.{number}"}
        for number in range(1, count + 1)
    ]
    body = {"schema": "sparkyard/cluster/v1", "topology": "switch", "head": "spark-1", "nodes": nodes}
    body["checkpoint"] = {"node": "spark-1", "path": "/checkpoint"}
    lab = lab_profile()
    profile = lab.model_copy(
        update={
            "parallel": lab.parallel.model_copy(update={"tp": tp}),
            "share": lab.share.model_copy(update=options),
        }
    )
    return make_goal(profile, Cluster.model_validate(body))


def ports(number: int, *, cable: bool) -> tuple[PortFacts, ...]:
    slow = PortFacts(interface="enP7s7", address=f"10.77.0.{number}/24", speed_mbit=SLOW_MBIT)
    fast = PortFacts(interface="enp1s0f0np0", address=f"192.168.101.{number}/24", speed_mbit=FAST_MBIT)
    return (slow, fast) if cable else (slow,)


def cabled(wanted: Goal, facts: ClusterFacts, without: str = "") -> ClusterFacts:
    """The same facts, with every cable in but one node's."""
    return {
        node.name: facts[node.name].model_copy(update={"ports": ports(number, cable=node.name != without)})
        for number, node in enumerate(wanted.cluster.nodes, start=1)
    }


def settled(wanted: Goal, facts: ClusterFacts) -> tuple[ClusterFacts, tuple[Stage, ...]]:
    """Facts after `share`, and its stages."""
    from orchestrator.plan.predict import after_stage

    stages, failures = dry_run(lambda seen: share.decide(wanted, seen), facts)
    assert failures == ()
    for stage in stages:
        facts = after_stage(facts, stage)
    return facts, stages


def first(wanted: Goal) -> ClusterFacts:
    facts = {node.name: fresh(node.name, wanted) for node in wanted.cluster.nodes}
    return settled(wanted, cabled(wanted, facts))[0]


def titles(stages: tuple[Stage, ...]) -> list[str]:
    return [stage.title for stage in stages]


def test_a_cable_that_is_pulled_changes_one_node_only_and_back_again() -> None:
    wanted = goal(3, 3)
    facts = first(wanted)
    assert facts["spark-1"].exported == ("192.168.101.2", "192.168.101.3")
    facts, stages = settled(wanted, cabled(wanted, facts, without="spark-3"))
    assert titles(stages) == ["export the checkpoint", "reach the checkpoint"]
    assert "this is the slow network" in stages[1].steps[0].why
    assert {step.node for stage in stages for step in stage.steps} == {"spark-1", "spark-3"}
    assert facts["spark-3"].share is not None
    assert facts["spark-3"].share.server == "10.77.0.1"
    assert facts["spark-1"].exported == ("10.77.0.3", "192.168.101.2")
    assert settled(wanted, facts)[1] == ()
    facts, stages = settled(wanted, cabled(wanted, facts))
    assert [
        step.node for stage in stages for step in stage.steps if isinstance(step.action, AttachCheckpoint)
    ] == ["spark-3"]
    assert facts["spark-1"].exported == ("192.168.101.2", "192.168.101.3")
    assert facts["spark-3"].share is not None
    assert facts["spark-3"].share.server == "192.168.101.1"
    assert settled(wanted, facts)[1] == ()


def test_while_a_node_changes_its_way_the_old_one_stays_exported() -> None:
    wanted = goal(3, 3)
    facts, _ = settled(wanted, cabled(wanted, first(wanted), without="spark-3"))
    stages = settled(wanted, cabled(wanted, facts))[1]
    actions = [step.action for stage in stages for step in stage.steps]
    assert [type(action) for action in actions] == [ExportCheckpoint, AttachCheckpoint, ExportCheckpoint]
    assert isinstance(actions[0], ExportCheckpoint)
    assert set(actions[0].clients) == {"10.77.0.3", "192.168.101.2", "192.168.101.3"}


def test_a_smaller_deployment_does_not_take_the_share_from_the_nodes_of_a_larger_one() -> None:
    facts = first(goal(4, 4))
    after, stages = settled(goal(4, 2), facts)
    assert stages == ()
    assert after["spark-1"].exported == ("192.168.101.2", "192.168.101.3", "192.168.101.4")


def test_other_mount_options_in_the_profile_mount_again_and_then_no_more() -> None:
    facts = first(goal(3, 3))
    wanted = goal(3, 3, nconnect=2)
    facts, stages = settled(wanted, facts)
    assert titles(stages) == ["reach the checkpoint"]
    assert [step.node for step in stages[0].steps] == ["spark-2", "spark-3"]
    assert all("nconnect=2" in step.why for step in stages[0].steps)
    assert settled(wanted, facts)[1] == ()
