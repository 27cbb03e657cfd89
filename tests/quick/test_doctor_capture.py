"""Captures: saved and judged again with the same findings, redacted, and made by hand from pasted output."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator import capture
from orchestrator.checks import examine, headlines
from orchestrator.checks.check import Node, Yard
from orchestrator.errors import ConfigError
from orchestrator.redact import redacted
from orchestrator.view import doctor as view
from tests.nodes import gb10, judge, manual

OWNER = ("spark-2", "SYN00002", "00000000000000000000000000000002", "GPU-00000002", "02:00:5e:00:02:00")


def yard_of(case: str) -> Yard:
    data = json.loads(Path(f"tests/cases/doctor/{case}.json").read_text())
    nodes = tuple(Node(name, hardware, offset_s=0.0) for name, hardware in judge.built(data).items())
    return Yard(nodes, judge.NOW_UNIX_S, topology=judge.WIRING[data["base"]])


@pytest.mark.parametrize("case", ["D03", "D14", "D20", "D36", "D42", "D48", "D50", "D52"])
def test_a_saved_capture_gives_the_same_findings(case: str, tmp_path: Path) -> None:
    yard = yard_of(case)
    place = tmp_path / "capture.json"
    capture.save(yard, place)
    before = [(f.check, f.severity, f.because_of == "", f.confidence) for f in examine(yard)]
    again = examine(capture.load(place, now_unix_s=0.0))
    assert [(f.check, f.severity, f.because_of == "", f.confidence) for f in again] == before


def test_a_capture_says_nothing_of_its_owner(tmp_path: Path) -> None:
    yard = yard_of("D20")
    plain = json.dumps(capture.capture_of(yard).model_dump(mode="json", by_alias=True))
    capture.save(yard, tmp_path / "capture.json")
    saved = (tmp_path / "capture.json").read_text()
    for text in OWNER:
        assert text in plain
        assert text not in saved
    assert "192.168.2." in saved


def test_public_addresses_and_hardware_addresses_are_replaced_alike_everywhere() -> None:
    data = {
        "nodes": {
            "alpha": {
                "hardware": {"facts": {"host": {"value": {"hostname": "alpha.example.org", "user": "jo"}}}}
            }
        },
        "texts": [
            "203.0.113.9 and 8.8.4.4",
            "8.8.8.8",
            "aa:bb:cc:dd:ee:ff",
            "AA:BB:CC:DD:EE:FF",
            "/home/jo/x",
            "jo",
        ],
        "gid": "0000:0000:0000:0000:0000:ffff:0808:0808",
        "key": {"alpha": "alpha.example.org", "2a00:1450:4001::1": "fe80::a8bb:ccff:fedd:eeff"},
    }
    made = redacted(data)
    assert json.loads(json.dumps(made)) == made
    text = json.dumps(made)
    for gone in (
        "alpha",
        "example.org",
        "8.8.8.8",
        "8.8.4.4",
        "aa:bb:cc",
        "AA:BB",
        "0808:0808",
        "2a00:1450",
        "ccff:fedd",
        "jo",
    ):
        assert gone not in text
    assert made["texts"][2] == made["texts"][3]
    assert made["texts"][0].split()[2].rsplit(".", 2)[0] == made["texts"][1].rsplit(".", 2)[0]


def test_pasted_output_is_enough_to_judge_two_nodes() -> None:
    yard = capture.load(Path("tests/cases/pasted"), now_unix_s=judge.NOW_UNIX_S)
    findings = examine(yard)
    shown = {(finding.check, finding.node) for finding in headlines(findings)}
    assert ("cx7.pcie", "spark-a") in shown
    assert ("cx7.mtu", "spark-b") in shown or ("cx7.mtu", "spark-a") in shown
    assert ("mem.avail", "spark-b") in shown
    assert ("gpu.present", "spark-a") not in shown
    assert {finding.check for finding in findings if finding.check.startswith("docker.")} >= {"docker.group"}
    assert all(f.severity == "unknown" for f in findings if f.check.startswith("docker."))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "Input should be"),
        ('{"schema": "sparkyard/capture/v1", "taken_unix_s": 1, "nodes": {}}', "at least 1"),
        (
            '{"schema": "sparkyard/capture/v1", "taken_unix_s": 1, "nodes": {"a": {"hardwear": 1}}}',
            "nodes.a.hardwear",
        ),
        ("[" * 100000, "not JSON"),
    ],
)
def test_a_wrong_capture_is_refused_with_the_place_of_the_fault(text: str, said: str, tmp_path: Path) -> None:
    place = tmp_path / "capture.json"
    place.write_text(text)
    with pytest.raises(ConfigError) as caught:
        capture.load(place, now_unix_s=0.0)
    assert said in str(caught.value)
    assert str(place) in str(caught.value)


def test_a_folder_without_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node in it"):
        capture.load(tmp_path, now_unix_s=0.0)
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match="neither"):
        capture.load(tmp_path, now_unix_s=0.0)


def test_the_manual_is_current() -> None:
    assert manual.PAGE.read_text() == manual.page(manual.counts(), manual.public()), (
        "run: python -m tests.nodes.manual"
    )
    assert json.loads(manual.COUNTS.read_text()) == manual.counts()
    rows = view.list_data()["checks"]
    assert [row["id"] for row in rows if not row["cases"]] == []
    assert all(row["source"] and row["thresholds"] and row["remedy"] and row["reads"] for row in rows)


def test_the_report_has_no_colour_in_a_pipe_and_counts_last() -> None:
    yard = yard_of("D14")
    stream = io.StringIO()
    view.report(Console(file=stream, width=200), yard, examine(yard), verbose=False)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert text.splitlines()[-1].startswith("1 error, 0 warnings, 0 unknown")
    assert "explains: cx7.enumerated@spark-2, topo.cabling" in text


def test_an_unreachable_node_is_unknown_and_ignoring_demotes() -> None:
    nodes = judge.healthy("fe-triangle")
    findings = judge.judge(nodes, topology="triangle", unreachable={"spark-3": "ssh: connection refused"})
    silent = [finding for finding in findings if finding.check == "node.reachable"]
    assert [(finding.node, finding.severity) for finding in silent] == [("spark-3", "unknown")]
    assert headlines(findings) == ()
    case = json.loads(Path("tests/cases/doctor/D14.json").read_text())
    ignored = judge.judge(judge.built(case), topology="triangle", ignore=("fw.parity",))
    assert [(f.check, f.severity, f.was) for f in ignored if f.ignored] == [("fw.parity", "note", "error")]
    assert {f.check for f in headlines(ignored)} == {"cx7.enumerated", "topo.cabling"}


def test_the_layouts_are_found_from_facts() -> None:
    from orchestrator.checks.topology import layout

    shapes = {}
    for name in gb10.CLUSTERS:
        nodes = tuple(Node(node, hardware) for node, hardware in judge.healthy(name).items())
        shapes[name] = layout(Yard(nodes, judge.NOW_UNIX_S)).shape
    assert shapes == {
        "fe-triangle": "triangle",
        "asus-pair": "pair",
        "dell-pair": "pair",
        "mixed-four": "switch",
        "fe-ring": "ring",
        "fe-alone": "alone",
    }
