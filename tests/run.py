"""`./start.sh test [quick|life|hardening|engine|lab|gang|integration|vms|all]`: runs suites, one exit code.

With `--gate` what fails is tried once more, and called flaky when it passes then: on a shared machine a bound can be
missed by noise alone (`docs/decisions/second-try.md`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINTS = (
    ("ruff check", ["-m", "ruff", "check", "."]),
    ("ruff format", ["-m", "ruff", "format", "--check", "."]),
    ("mypy", ["-m", "mypy"]),
    (
        "import-linter",
        ["-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"],
    ),
)
TESTS_FAILED = 1
"""Exit code of pytest; any other failure is of the suite itself, and no second try mends it."""
NO_TESTS_COLLECTED = 5
"""Exit code of pytest; a suite that exists and runs nothing has failed."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A folder of tests and how it is run."""

    name: str
    folder: str
    workers: int
    """Processes side by side; 1 where tests share a booted cluster."""
    timeout_s: int


SUITES = (
    Suite("quick", "tests/quick", 2, 600),
    Suite("life", "tests/life", 2, 900),
    Suite("hardening", "tests/hardening", 2, 900),
    Suite("engine", "tests/engine", 1, 900),
    Suite("lab", "tests/lab", 1, 1200),
    Suite("gang", "tests/gang", 1, 1200),
    Suite("integration", "tests/integration", 2, 1200),
    Suite("vms", "tests/vms", 1, 900),
)


def main() -> int:
    """Run what is asked for; 0 when all passed, 2 for an unknown suite."""
    gate = "--gate" in sys.argv
    asked = [name for name in sys.argv[1:] if name != "--gate"] or ["all"]
    known = {suite.name: suite for suite in SUITES}
    if unknown := [name for name in asked if name not in known and name != "all"]:
        sys.stderr.write(f"no suite is called {', '.join(unknown)}; there are: {', '.join(known)}, all\n")
        return 2
    wanted = list(SUITES) if "all" in asked else [known[name] for name in asked]
    results: list[tuple[str, float, str]] = []
    for suite in wanted:
        begin = time.monotonic()
        word = run(suite, gate=gate)
        results.append((suite.name, time.monotonic() - begin, word))
        sys.stdout.write(f"suite {suite.name}: {word}, {results[-1][1]:.0f} s\n")
        sys.stdout.flush()
    for name, seconds, word in results:
        sys.stdout.write(f"{name:12} {seconds:6.0f} s  {word}\n")
    return 1 if any(word == "failed" for _, _, word in results) else 0


def run(suite: Suite, *, gate: bool) -> str:
    """One suite: passed, failed, or the plain words that it does not exist yet."""
    folder = ROOT / suite.folder
    if not list(folder.glob("test_*.py")):
        return "does not exist yet"
    passed = lints() if suite.name == "quick" else True
    python = sys.executable if suite.name != "engine" else engine_python()
    argv = [python, "-m", "pytest", suite.folder, "--timeout", str(suite.timeout_s), "--durations", "5"]
    argv += ["-o", f"cache_dir=.pytest_cache/suite-{suite.name}"]  # two suites may run side by side
    if suite.workers > 1:
        argv += ["-n", str(suite.workers), "--dist", "loadfile"]
    code = subprocess.run(argv, cwd=ROOT, env=environment(), check=False).returncode
    if code == TESTS_FAILED and gate:
        sys.stdout.write(f"suite {suite.name}: second try of what failed\n")
        sys.stdout.flush()
        again = [*argv, "--last-failed", "--last-failed-no-failures", "none"]
        code = subprocess.run(again, cwd=ROOT, env=environment(), check=False).returncode
        if code == 0 and passed:
            return "passed, flaky: what failed above passed at the second try"
    if code == NO_TESTS_COLLECTED:
        sys.stdout.write(f"{suite.folder}: no test was collected\n")
    return "passed" if passed and code == 0 else "failed"


def environment() -> dict[str, str]:
    """The tests' environment: no user's site-packages, a fixed hash seed."""
    return {**os.environ, "PYTHONNOUSERSITE": "1", "PYTHONHASHSEED": "0"}


def lints() -> bool:
    """Ruff, its formatter, mypy and import-linter; each prints what it finds."""
    good = True
    for name, argv in LINTS:
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, *argv], cwd=ROOT, env=lint_environment(), check=False, capture_output=True
        )
        word = "passed" if done.returncode == 0 else "failed"
        sys.stdout.write(f"{name}: {word}, {time.monotonic() - begin:.1f} s\n")
        if done.returncode != 0:
            sys.stdout.write((done.stdout + done.stderr).decode("utf-8", "replace"))
            good = False
    return good


def lint_environment() -> dict[str, str]:
    """import-linter imports the three programs, the engine from its own folder."""
    return {**environment(), "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "engine")])}


def engine_python() -> str:
    """Python of the engine's environment, made on first use."""
    from orchestrator.lab.environment import ensure

    said = [0.0]

    def progress(done: int, total: int, note: str) -> None:
        if time.monotonic() - said[0] > 5 or done in {0, total}:
            said[0] = time.monotonic()
            sys.stdout.write(f"  engine environment: {done} of {total} {note}\n")
            sys.stdout.flush()

    return str(ensure(progress).python)


if __name__ == "__main__":
    sys.exit(main())
