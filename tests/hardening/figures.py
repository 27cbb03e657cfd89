"""Figures of the hardening suite: each test adds what it tried; `python -m tests.hardening.figures` prints the sums.

Every worker process writes a file of its own into `FOLDER`; a run of the suite begins by emptying it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("SPARKYARD_FIGURES", ROOT / ".pytest_cache" / "hardening"))
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- figures of the last whole run -->", "<!-- end of figures -->"


FAULTS = {
    "on the lab (kills, bad files, damaged shards, full disks, wrong keys)": (
        "tests/life/test_crash.py",
        "tests/life/test_bad_input.py",
        "tests/lab/test_refusal.py",
        "tests/lab/test_fetch.py",
    ),
    "on a running gang": ("tests/gang", "tests/life/test_guardian.py", "tests/lab/test_watch.py"),
    "on the yard (links cut and slowed, engines and nodes ended)": ("tests/integration",),
}
"""Files whose tests break something on purpose."""


class Figures:
    """Sums by name, written at every change so that a run that is cut short keeps what it did."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._path = folder / f"{os.getpid()}.json"
        self._sums: Counter[str] = Counter()

    def add(self, what: str, number: int = 1) -> None:
        """`number` more of `what`."""
        self._sums[what] += number
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._sums))


def clear(folder: Path = FOLDER) -> None:
    """Forget the last run."""
    for path in folder.glob("*.json") if folder.is_dir() else ():
        path.unlink()


def sums(folder: Path = FOLDER) -> dict[str, int]:
    """Of all workers, by name."""
    total: Counter[str] = Counter()
    for path in sorted(folder.glob("*.json")):
        total.update(json.loads(path.read_text()))
    return dict(sorted(total.items()))


def faults(paths: tuple[str, ...]) -> int:
    """How many tests, each with its parameters, these files have."""
    argv = [sys.executable, "-m", "pytest", "--collect-only", *paths]  # quiet by configuration
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return sum("::" in line for line in done.stdout.splitlines())


def table(found: dict[str, int]) -> str:
    """For the page."""
    return "\n".join(
        ["| what | number |", "|---|---|", *(f"| {name} | {value:,} |" for name, value in found.items())]
    )


def main() -> int:
    """Print the figures of the last run and of the other suites; `--write` puts them into docs/reliability.md."""
    found = sums()
    if not found:
        sys.stderr.write("no figures yet: ./start.sh test hardening\n")
        return 3
    found |= {
        f"tests of the files that break something {where}": faults(paths) for where, paths in FAULTS.items()
    }
    sys.stdout.write(table(found) + "\n")
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
