"""How the lab's gang serves, by its own proof: a local block device, two equal greedy runs, the profile's band."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.model.profile import Band
from orchestrator.plan.proven import Item, failures
from orchestrator.proof import prove
from orchestrator.run import observe
from tests.realgang import RealLab


def items(lab: RealLab, name: str) -> list[dict[str, Any]]:
    return [item for item in lab.first["proven"] if item["name"] == name]


def test_the_rows_of_every_rank_lie_on_a_local_block_device(lab: RealLab) -> None:
    found = items(lab, "store")
    assert [item["rank"] for item in found] == [0, 1, 2]
    assert {item["severity"] for item in found} == {"good"}
    assert all("the disk " in item["text"] for item in found), found


def test_two_greedy_runs_are_token_identical(lab: RealLab) -> None:
    (item,) = items(lab, "greedy")
    assert item["severity"] == "good"
    assert item["text"].endswith("24 tokens")


def test_first_token_and_step_are_inside_the_profiles_band(lab: RealLab) -> None:
    found = items(lab, "pace")
    print([item["text"] for item in found])
    assert [item["severity"] for item in found] == ["good", "good"]
    assert all("band" in item["text"] for item in found)


def test_outside_the_band_it_does_not_pass(serving: RealLab) -> None:
    narrow = Band(first_token_s=(1e-6, 2e-6), step_s=(1e-6, 2e-6), source="a test")

    async def go() -> tuple[Item, ...]:
        session = serving.session()
        session.profile = session.profile.model_copy(update={"band": narrow})
        goal, payloads = session.goal()
        async with session.world(payloads) as world:
            return await prove(world, goal, await observe(world))

    found = asyncio.run(go())
    assert len(failures(found)) == 2
    assert all("slow: " in failure.message for failure in failures(found))
