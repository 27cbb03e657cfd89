"""The reliability page: its tests exist, and its invariants are those of the simulator."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.hardening.deepsim import INVARIANTS
from tests.hardening.figures import BEGIN, END, PAGE

ROOT = Path(__file__).resolve().parents[2]
PROMISE = re.compile(r"^\| (.+) \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", re.MULTILINE)


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_a_test_that_exists() -> None:
    promises = PROMISE.findall(PAGE.read_text())
    assert len(promises) > 20
    assert [(file, name) for _, file, name in promises if name not in names_in(ROOT / file)] == []


def test_every_invariant_is_listed_and_none_that_is_not_checked() -> None:
    _, _, rest = PAGE.read_text().partition("## Invariants of the simulator")
    listed = re.findall(r"^\| ([a-z ]+) \| ", rest.partition("## Promises")[0], re.MULTILINE)
    assert listed[0] == "invariant"
    assert listed[1:] == list(INVARIANTS)


def test_the_page_has_figures() -> None:
    text = PAGE.read_text()
    figures = text[text.index(BEGIN) : text.index(END)]
    for word in ("crash points", "power losses", "seeds run", "faults injected", "inputs fuzzed"):
        assert word in figures, "./start.sh test hardening; python -m tests.hardening.figures --write"
