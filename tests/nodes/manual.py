"""Counts the cases of each check and rewrites docs/doctor.md: `python -m tests.nodes.manual`.

With `--gaps` nothing is written: checks without a mutation of a healthy cluster are printed, exit code 1 if there are.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from orchestrator.checks import CHECKS
from orchestrator.checks.manual import page

CASES = Path("tests/cases/doctor")
PAGE = Path("docs/doctor.md")
COUNTS = Path("orchestrator/checks/cases.json")


def public() -> list[dict[str, Any]]:
    """The public cases, in order."""
    return [json.loads(path.read_text()) for path in sorted(CASES.glob("D*.json"))]


def counts() -> dict[str, int]:
    """Check → number of recorded cases that speak of it: its mutation, and public cases that end in it."""
    found: Counter[str] = Counter(json.loads((CASES / "mutations.json").read_text()).keys())
    for case in public():
        named = {check for check, _ in case["headline"]}
        found.update(named | set(case["folded"]) | set(case["notes"]) | set(case["untested"]))
    return dict(sorted(found.items()))


def gaps() -> list[str]:
    """Checks without a mutation case."""
    known = json.loads((CASES / "mutations.json").read_text())
    return sorted(check.id for check in CHECKS if check.id not in known)


def main() -> None:
    """Rewrite the page, and the counts that `doctor --list` shows."""
    if "--gaps" in sys.argv[1:]:
        missing = gaps()
        sys.stdout.write(f"checks without a case: {', '.join(missing) or 'none'} ({len(CHECKS)} checks)\n")
        raise SystemExit(1 if missing else 0)
    COUNTS.write_text(json.dumps(counts(), indent=1) + "\n")
    PAGE.write_text(page(counts(), public()))


if __name__ == "__main__":
    main()
