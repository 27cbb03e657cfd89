"""What a verb answers with `--json`. One object, `schema` first."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.model.facts import ClusterFacts, NodeFacts
from orchestrator.model.goal import Goal
from orchestrator.model.step import Failure, Stage
from orchestrator.words import action, condition


def failures_json(failures: tuple[Failure, ...]) -> list[dict[str, Any]]:
    """Failures as objects."""
    return [asdict(failure) for failure in failures]


def stages_json(stages: tuple[Stage, ...]) -> list[dict[str, Any]]:
    """Stages as objects, in the words that people read."""
    return [
        {
            "title": stage.title,
            "steps": [{"node": s.node, "action": action(s.action), "why": s.why} for s in stage.steps],
            "waits": [
                {"node": w.node, "until": condition(w.until), "why": w.why, "deadline_s": w.deadline_s}
                for w in stage.waits
            ],
        }
        for stage in stages
    ]


def run_json(
    verb: str, stages: tuple[Stage, ...], failures: tuple[Failure, ...], seconds: float
) -> dict[str, Any]:
    """A converging verb's result."""
    return {
        "schema": f"sparkyard/{verb}/v1",
        "ok": not failures,
        "stages": stages_json(stages),
        "failures": failures_json(failures),
        "seconds": round(seconds, 3),
    }


def plan_json(verb: str, stages: tuple[Stage, ...], failures: tuple[Failure, ...]) -> dict[str, Any]:
    """A plan."""
    return {
        "schema": "sparkyard/plan/v1",
        "verb": verb,
        "stages": stages_json(stages),
        "blocked": failures_json(failures),
    }


def _config(here: NodeFacts, content: str) -> str | None:
    """Digest of the image itself, as the node's Docker engine tells it: what a registry would show."""
    image = here.docker.image(content) if here.docker and content else None
    return (image.config or image.rootfs) if image else None


def status_json(goal: Goal, facts: ClusterFacts, missing: tuple[Failure, ...]) -> dict[str, Any]:
    """Desired against observed, per rank. `serving` is true when every rank is ready or past its gate and proven."""
    name = goal.profile.name
    desired = [here.desired for here in facts.values() if here.desired and here.desired.deployment == name]
    newest = max((record.generation for record in desired), default=0)
    ranks = []
    for rank, node in enumerate(goal.ranked):
        here = facts.get(node.name)
        found = here.rank(name, rank, newest) if here else None
        ranks.append(
            {
                "rank": rank,
                "node": node.name,
                "answered": here is not None,
                "alive": bool(found and found.alive),
                "phase": found.phase if found else "none",
                "ended": found.ended if found else "",
                "since_unix_s": found.since_unix_s if found else None,
                "desired": here.desired.state
                if here and here.desired and here.desired.deployment == name
                else "none",
                "generation": found.generation if found else None,
                "store": found.proven_store if found else None,
                "engine": found.engine if found else "",
                "image": found.image if found else "",
                "image_config": _config(here, found.image) if here and found else None,
                "weights_from": found.weights_from if found else "",
                "weights_note": found.weights_note if found else "",
                "memory_available_bytes": here.memory.available_bytes if here else None,
                "memory_low_water_bytes": found.memory_low_water_bytes if found else None,
                "kv_tokens": found.kv_tokens if found else None,
                "kv_tokens_asked": found.kv_tokens_asked if found else None,
                "rows_read": found.rows_read if found else None,
            }
        )
    head = facts.get(goal.head.name)
    boot = head.boot(name, newest) if head else None
    first = head.rank(name, 0, newest) if head else None
    serving = bool(
        all(entry["alive"] for entry in ranks) and first and first.phase == "ready" and boot and boot.canary
    )
    return {
        "schema": "sparkyard/status/v1",
        "deployment": name,
        "desired": desired[0].state if desired else "none",
        "generation": newest,
        "serving": serving,
        "url": f"http://{goal.profile.ports.listen}:{goal.port(goal.head, goal.profile.ports.api)}/v1",
        "model": goal.profile.model.served_name,
        "ranks": ranks,
        "unanswered": failures_json(missing),
    }
