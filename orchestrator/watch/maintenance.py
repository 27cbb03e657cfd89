"""`maintain`: somebody works on the deployment, so the watch must not act."""

from __future__ import annotations

from orchestrator.errors import Exit
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.step import Decision, SetDesired, Stage, Step
from orchestrator.plan.serve import SHORT_BOUND_S
from orchestrator.run import converge, observe
from orchestrator.verbs import Answer, Session, let_rest


async def maintain(session: Session, *, end: bool) -> Answer:
    """Write the record on every node that answers; with `end`, serving again for what was in maintenance."""
    name = session.profile.name
    session.listen_for_interrupt()
    async with session.world() as world:
        if end:
            outcome = await converge(world, lambda facts: _serving_again(name, facts))
            failures = outcome.failures
        else:
            facts = await observe(world)
            at_work = [
                here
                for here in facts.values()
                if here.desired and here.desired.deployment == name and here.desired.state != "stopped"
            ]
            if not at_work:
                session.emit(Said("warning", f"{name} is not wanted to serve: there is nothing to maintain"))
                return Answer({"schema": "sparkyard/maintain/v1", "ok": False}, Exit.FAILED)
            failures = await let_rest(world, name, "maintenance")
    for failure in failures:
        session.emit(Said("error", f"{failure.node}: {failure.message}"))
    data = {
        "schema": "sparkyard/maintain/v1",
        "ok": not failures,
        "state": "serving" if end else "maintenance",
    }
    return Answer(data, Exit.FAILED if failures else Exit.FINE)


def _serving_again(name: str, facts: ClusterFacts) -> Decision:
    steps = tuple(
        Step(
            here.node,
            SetDesired(name, here.desired.generation, "serving", here.desired.profile),
            "the maintenance is over",
            SHORT_BOUND_S,
        )
        for here in facts.values()
        if here.desired is not None
        and here.desired.deployment == name
        and here.desired.state == "maintenance"
    )
    return Stage("desired: serving again", steps) if steps else None
