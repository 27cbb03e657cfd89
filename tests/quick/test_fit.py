"""A start that does not fit is refused before anything is moved; what runs already, and other models, are let pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.ledgers import published
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.facts import CheckpointFacts, Desired, Disk, NodeFacts, RankFacts
from orchestrator.model.goal import Goal, Package
from orchestrator.model.profile import Padding, Profile
from orchestrator.model.step import Blocked, Decision, Stage
from orchestrator.plan import fit, up
from tests.sim import fresh

CLUSTERS = Path(__file__).parents[1] / "cases" / "clusters"
CLUSTER = load_cluster(CLUSTERS / "triangle.yaml")
TP3 = load_profile("deepseek-v4.1-flash-tp3")
BUDGET = published()
GIB, GB = 1 << 30, 10**9
CONFIG: dict[str, Any] = {
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "o_groups": 8,
    "vocab_size": 129_280,
    "max_position_embeddings": 1_048_576,
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384_006_168, 384_016_682],
}


def with_flag(profile: Profile, name: str, value: object) -> Profile:
    settings = tuple(
        each.model_copy(update={"value": value}) if getattr(each, "flag", None) == name else each
        for each in profile.settings
    )
    return profile.model_copy(update={"settings": settings})


def renamed(profile: Profile, name: str) -> Profile:
    return profile.model_copy(update={"model": profile.model.model_copy(update={"name": name})})


def facts(
    goal: Goal, *, free_gb: int = 900, used_gib: float = 5.0, config: dict[str, Any] | None = None
) -> dict[str, NodeFacts]:
    """Sparks of 121.7 GiB. The head's checkpoint has that config and is on disk when one is given."""
    found = {}
    total = round(121.7 * GIB)
    for node in goal.cluster.nodes:
        memory = {"total_bytes": total, "available_bytes": total - round(used_gib * GIB)}
        here = fresh(node.name, goal).model_dump()
        disk = Disk(path=node.root, filesystem="ext4", total_bytes=1000 * GB, free_bytes=free_gb * GB)
        seen = CheckpointFacts(path="/models", total_bytes=510 * GB, config=config or {})
        owner = node.name == goal.owner.name and config is not None
        here |= {
            "memory": memory,
            "disks": [disk.model_dump()],
            "checkpoint": seen.model_dump() if owner else None,
        }
        found[node.name] = NodeFacts.model_validate(here)
    return found


def first(verb: str, profile: Profile, **given: Any) -> Decision:
    goal = Goal(profile, CLUSTER, Package("a" * 64, 1000))
    return up.verb(verb, goal, lambda: BUDGET)(facts(goal, **given))


def said(decision: Decision) -> str:
    assert isinstance(decision, Blocked)
    return "\n".join(f"{failure.node}: {failure.message} | {failure.remedy}" for failure in decision.failures)


@pytest.mark.parametrize("verb", ["serve", "up", "restart"])
def test_a_prefill_that_cannot_survive_is_refused_with_its_arithmetic(verb: str) -> None:
    text = said(first(verb, with_flag(TP3, "--chunked-prefill-size", 2048)))
    assert "chunk 2048 x context 262144 x 14 B = 7.00 GiB" in text
    assert "--chunked-prefill-size" in text.split("|")[1]


def parallel(tp: int, padding: Padding | None) -> Profile:
    return TP3.model_copy(update={"parallel": TP3.parallel.model_copy(update={"tp": tp, "padding": padding})})


def expandable() -> Profile:
    settings = tuple(
        each.model_copy(update={"value": "expandable_segments:True"})
        if getattr(each, "env", None) == "PYTORCH_CUDA_ALLOC_CONF"
        else each
        for each in TP3.settings
    )
    return TP3.model_copy(update={"settings": settings})


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (with_flag(TP3, "--chunked-prefill-size", 2048), "x 14 B = 7.00 GiB"),
        (
            with_flag(TP3, "--max-total-tokens", 9_000_000),
            "a pool of 9000000 tokens takes 14.32 GiB, but the static fraction 0.95 leaves",
        ),
        (
            TP3.model_copy(update={"engram": TP3.engram.model_copy(update={"mode": "memory"})}),
            "the tables take 62.94 GiB a rank",
        ),
        (expandable(), "expandable_segments:True: gave NaN"),
        (parallel(3, None), "not divisible by 3 ranks; no padding plan of this profile serves it"),
        (
            parallel(2, None),
            "GiB are missing on spark-1: more than the prefill takes; only more ranks help (tp 3)",
        ),
    ],
    ids=["prefill", "pool", "tables in memory", "expandable segments", "no padding", "two ranks"],
)
def test_every_unsafe_combination_is_refused_by_serve(asked: Profile, why: str) -> None:
    assert why in said(first("serve", asked))


def test_memory_that_somebody_else_holds_is_counted() -> None:
    text = said(first("serve", TP3, used_gib=40))
    assert "a pool of 750000 tokens takes" in text
    assert "GiB are missing on spark-1: more than the prefill takes" in text
    unpinned = TP3.model_copy(
        update={"settings": tuple(s for s in TP3.settings if getattr(s, "flag", "") != "--max-total-tokens")}
    )
    text = said(first("serve", unpinned, used_gib=40))
    assert re.search(r"rank 0 needs 1\d\d\.\d\d GiB of 121\.70: \d+\.\d\d GiB are missing", text)


def test_disks_are_judged_before_the_first_byte_of_up_and_not_by_serve() -> None:
    text = said(first("up", TP3, free_gb=100))
    assert "100,000,000,000 bytes free" in text
    assert "needed at the peak" in text
    assert "prune" in text
    assert isinstance(first("up", TP3, free_gb=900), Stage | Blocked)
    assert "bytes free" not in said(first("serve", TP3, free_gb=100))


def test_a_later_release_of_the_same_geometry_is_judged_like_the_first() -> None:
    october = renamed(TP3, "somebody/DeepSeek-V4.1-Flash-1017")
    goal = Goal(october, CLUSTER, Package("a" * 64, 1000))
    assert not fit.applies(october, CLUSTER, facts(goal))
    assert fit.applies(october, CLUSTER, facts(goal, config=CONFIG))
    wide = with_flag(october, "--chunked-prefill-size", 2048)
    assert "chunk 2048" in said(first("up", wide, config=CONFIG))
    october = renamed(TP3, "deepseek-ai/DeepSeek-V4.1-Flash-1017")
    assert "geometry" not in said(first("serve", october, config=CONFIG))


def test_another_geometry_is_refused_by_the_key_that_differs() -> None:
    config = CONFIG | {"num_hidden_layers": 44, "engram_num_embeddings": [1000, 2000]}
    text = said(first("up", TP3, config=config))
    assert "/models/config.json: num_hidden_layers 44, DeepSeek-V4.1-Flash has 40" in text
    assert "engram_num_embeddings [1000, 2000]" in text


def test_other_models_and_a_gang_that_runs_are_not_judged() -> None:
    wide = with_flag(TP3, "--chunked-prefill-size", 2048)
    assert "chunk" not in said(first("serve", renamed(wide, "lab")))
    goal = Goal(wide, CLUSTER, Package("a" * 64, 1000))
    here = facts(goal)
    judged = up.judged(goal, lambda: BUDGET, lambda _: None, disks=True)
    assert isinstance(judged(here), Blocked)
    for rank, node in enumerate(goal.ranked):
        desired = Desired(deployment=wide.name, generation=4, state="serving", profile=wide.identity)
        lives = RankFacts(
            deployment=wide.name, generation=4, rank=rank, spec="b" * 64, alive=rank > 0, phase="ready"
        )
        here[node.name] = here[node.name].model_copy(update={"desired": desired, "ranks": (lives,)})
    assert isinstance(judged(here), Blocked)  # one rank is dead
    head = here[goal.head.name]
    lives = head.ranks[0].model_copy(update={"alive": True})
    assert judged(here | {goal.head.name: head.model_copy(update={"ranks": (lives,)})}) is None
    assert up.judged(goal, None, lambda _: None, disks=True)(facts(goal)) is None
