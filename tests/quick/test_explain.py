"""What failed boots write, and the cause that is named for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.explain import folder
from orchestrator.explain.judge import explain, rank_of
from orchestrator.explain.rules import RULES, SAME

ROOT = Path(__file__).resolve().parents[2]
CASES = sorted((ROOT / "tests" / "cases" / "explain").glob("*.json"))


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_right_cause_is_the_headline(path: Path) -> None:
    case = read(path)
    causes = explain(case["files"])
    if not case["cause"]:
        assert causes == ()
        return
    assert causes
    first = causes[0]
    assert first.id == case["cause"], [cause.id for cause in causes]
    assert first.lines
    if "ranks" in case:
        assert list(first.ranks) == case["ranks"]
    assert case.get("note", "") in first.note


def test_every_rule_has_a_case_and_every_case_a_source() -> None:
    cases = [read(path) for path in CASES]
    assert len(cases) >= 25
    shown = {cause.id for case in cases for cause in explain(case["files"])}
    assert {rule.id for rule in (*RULES, *SAME)} - shown - {"package_differs"} == set()
    assert all(case["source"] for case in cases)


def test_without_its_lines_no_case_has_its_cause() -> None:
    for path in CASES:
        case = read(path)
        if not case["cause"]:
            continue
        first = explain(case["files"])[0]
        shown = {(line.file, line.number) for line in first.lines}
        rest = {
            file: [text for number, text in enumerate(lines, 1) if (file, number) not in shown]
            for file, lines in case["files"].items()
        }
        assert case["cause"] not in {cause.id for cause in explain(rest)}, path.stem


def test_two_versions_of_our_own_package_are_told() -> None:
    logs = {
        f"rank-{number}/rank.json": [f'"PYTHONPATH": "/yard/spark-{number}/engine/{digit * 64}"']
        for number, digit in enumerate("aab")
    }
    assert explain(logs)[0].id == "package_differs"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-2/engine.log", 2),
        ("r10.txt", 10),
        ("spark_rank1.log", 1),
        ("kernel.log", None),
        ("rate1.log", None),
    ],
)
def test_the_rank_of_a_file(name: str, rank: int | None) -> None:
    assert rank_of(name) == rank


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.dictionaries(st.text(max_size=20), st.lists(st.text(max_size=200), max_size=5), max_size=4))
def test_whatever_is_written_is_read(logs: dict[str, list[str]]) -> None:
    for cause in explain(logs):
        assert cause.lines


def test_the_command_reads_a_folder_and_answers_with_one_object(tmp_path: Path) -> None:
    case = read(next(path for path in CASES if path.stem == "memory-floor-while-loading"))
    for name, lines in case["files"].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines))
    argv = [sys.executable, "-m", "orchestrator", "explain", "--from", str(tmp_path), "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == "sparkyard/explain/v1"
    assert data["causes"][0]["cause"] == "memory_floor"
    assert data["causes"][0]["lines"][0]["file"] == "rank-2/guard.log"
    missing = subprocess.run(
        [*argv[:4], "--from", "/no/such/folder"], cwd=ROOT, capture_output=True, check=False
    )
    assert missing.returncode == 2
    assert b"no such folder" in missing.stderr
    assert b"Traceback" not in missing.stderr


def test_large_and_binary_files_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_bytes(b"\xff\x00" * 10 + b"\nCUDA out of memory\n" + b"x" * 100)
    (tmp_path / "big.log").write_bytes(b"y\n" * (1 << 20))
    logs = folder.read(tmp_path)
    assert sum(len(lines) for lines in logs.values()) <= folder.FILE_MAX_BYTES
    assert explain(logs)[0].id == "cuda_oom"


def test_patterns_are_not_catastrophic() -> None:
    """A megabyte of one line must not take long: no nested repetition in a pattern."""
    for rule in RULES:
        for pattern in (*rule.patterns, *rule.beside):
            assert not re.search(r"\([^()]*[+*][^()]*\)[+*]", pattern.pattern), pattern.pattern
