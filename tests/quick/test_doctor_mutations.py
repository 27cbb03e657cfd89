"""Each check once: a healthy cluster with only that value made bad gives exactly that headline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.checks import CHECKS, headlines
from orchestrator.cli import app
from orchestrator.model.finding import Severity
from tests.nodes import gb10, judge, manual

MUTATIONS: dict[str, Any] = json.loads(Path("tests/cases/doctor/mutations.json").read_text())


@pytest.mark.parametrize("name", sorted(gb10.CLUSTERS))
def test_a_healthy_cluster_has_no_headline(name: str) -> None:
    findings = judge.judge(judge.healthy(name), topology=judge.WIRING[name])
    assert headlines(findings) == ()
    assert {finding.why_unknown for finding in findings if finding.severity is Severity.UNKNOWN} == {
        "untested"
    }


def test_every_check_has_a_mutation() -> None:
    assert sorted(check.id for check in CHECKS if check.id not in MUTATIONS) == []
    assert sorted(set(MUTATIONS) - {check.id for check in CHECKS}) == []


def test_the_list_has_every_check_that_the_field_asks_for() -> None:
    """`doctor --list --json`: every id of the catalogue, each with its reads, thresholds, source and cases."""
    ran = CliRunner().invoke(app, ["doctor", "--list", "--json"])
    assert ran.exit_code == 0, ran.output
    rows = {row["id"]: row for row in json.loads(ran.stdout)["checks"]}
    wanted = Path("tests/cases/doctor/catalogue.txt").read_text().split()
    assert len(wanted) == len(set(wanted)) == 104
    assert sorted(set(wanted) - set(rows)) == []
    hollow = [i for i, row in rows.items() if not (row["thresholds"] and row["source"] and row["cases"])]
    assert hollow == []
    assert all(row["reads"] or row["probe"] for row in rows.values())
    assert manual.gaps() == []


@pytest.mark.parametrize("check", sorted(MUTATIONS))
def test_only_that_value_gives_only_that_headline(check: str) -> None:
    mutation = MUTATIONS[check]
    base = mutation["base"]
    options = {"topology": judge.WIRING[base], **mutation["options"]}
    findings = judge.judge(judge.built(mutation), **options)
    shown = [(finding.check, finding.node) for finding in headlines(findings)]
    if mutation.get("severity") == "note":
        assert shown == []
        assert {f.severity for f in findings if f.check == check} == {Severity.NOTE}
        return
    assert Counter(shown) == Counter((name, node) for name, node in mutation["headline"]), [
        (f.key, f.measured, f.because_of) for f in findings if f.severity in ("error", "warning")
    ]
    folded = [finding.check for finding in findings if finding.because_of and finding.why_unknown is None]
    assert sorted(folded) == sorted(mutation["folded"])
    own = next(finding for finding in findings if finding.check == check)
    assert own.measured
    assert own.expected
    assert own.remedy
