"""The public cases D1 to D52: the right headline, and nothing innocent blamed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks import headlines
from orchestrator.model.finding import Severity
from tests.nodes import judge

CASES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(Path("tests/cases/doctor").glob("D*.json"))
}


def test_every_public_case_is_here() -> None:
    assert sorted(CASES) == [f"D{number:02d}" for number in range(1, 53)]


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_headline_is_the_cause(name: str) -> None:
    case = CASES[name]
    base = case["base"]
    findings = judge.judge(judge.built(case), **{"topology": judge.WIRING[base], **case["options"]})
    faults = [(f.key, f.measured, f.because_of) for f in findings if f.severity in ("error", "warning")]
    shown = Counter((finding.check, finding.node) for finding in headlines(findings))
    assert shown == Counter((check, node) for check, node in case["headline"]), faults
    folded = sorted(f.check for f in findings if f.because_of and f.severity in ("error", "warning"))
    assert folded == case["folded"], faults
    assert not {key.partition("@")[0] for key, _, _ in faults} & set(case["blames_not"])
    assert set(case["notes"]) <= {f.check for f in findings if f.severity is Severity.NOTE}
    untested = {f.check for f in findings if f.severity is Severity.UNKNOWN and f.why_unknown == "untested"}
    assert set(case["untested"]) <= untested
    assert case["headline"] or case["notes"] or case["untested"] or case["blames_not"]
