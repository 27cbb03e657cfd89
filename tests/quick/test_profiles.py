"""The shipped profiles: every setting exists, memory is judged as it deserves."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.ledgers import ledgers
from orchestrator.load import PROFILES, load_cluster, load_profile
from orchestrator.model.profile import Profile
from orchestrator.names import problems, recorded

CLUSTERS = Path(__file__).parents[1] / "cases" / "clusters"
NAMES = sorted(path.stem for path in PROFILES.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_no_setting_is_set_in_vain(name: str) -> None:
    profile = load_profile(name)
    assert problems(profile, recorded()) == []
    kinds = [
        getattr(setting, kind)
        for setting in profile.settings
        for kind in ("flag", "env", "plugin", "absent")
        if hasattr(setting, kind)
    ]
    assert len(kinds) == len(set(kinds)), "a setting stands twice"


def test_unknown_names_and_wrong_types_are_told_by_their_place() -> None:
    wrong = [
        {"flag": "--no-such-flag", "why": "w"},
        {"env": "DSV41_WO_A_W8", "value": "1", "why": "w"},
        {"plugin": "warp_drive", "value": True, "why": "w"},
        {"plugin": "loop_abort", "value": 1, "why": "w"},
        {"absent": "anything", "cost": "c"},
    ]
    profile = load_profile("lab").model_dump(mode="json", by_alias=True) | {"settings": wrong}
    found = problems(Profile.model_validate(profile), recorded())
    assert [line.split(":")[0] for line in found] == [f"settings.{index}" for index in range(4)]
    assert "no --no-such-flag" in found[0]
    assert "neither SGLang, NCCL nor torch reads DSV41_WO_A_W8" in found[1]


@pytest.mark.parametrize(
    ("name", "cluster", "verdict"),
    [
        ("deepseek-v4.1-flash-tp3", "triangle", "tight"),
        ("deepseek-v4.1-flash-tp3-500k", "triangle", "tight"),
        ("deepseek-v4.1-flash-tp4", "switch", "fits"),
    ],
)
def test_the_ledger_of_each_profile(name: str, cluster: str, verdict: str) -> None:
    shown = ledgers(load_profile(name), load_cluster(CLUSTERS / f"{cluster}.yaml"), None)
    assert shown.json["ledger"]["verdict"] == verdict
    assert not shown.json["ledger"]["refusals"]
    assert all(line["cost"] for line in shown.json["absent"])
    assert any(line.startswith("memory: ") for line in shown.text)


def test_a_model_whose_geometry_is_not_known_has_no_ledger() -> None:
    shown = ledgers(load_profile("lab"), load_cluster(CLUSTERS / "triangle.yaml"), None)
    assert shown.memory is None
    assert "no geometry is known for sparkyard/lab-v41" in shown.json["ledger_note"]
