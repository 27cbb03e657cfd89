"""The monitor's systemd unit, judged by systemd itself where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.watch.unit import Unit, quoted

ROOT = Path(__file__).resolve().parents[2]
UNIT = Unit(
    python=Path(sys.executable),
    checkout=ROOT,
    cluster_file=Path("/home/spark/my yard/cluster.yaml"),
    state=Path("/home/spark/my yard/.sparkyard"),
    profile="deepseek-v4.1-flash-tp3",
    deployment="deepseek-v4.1-flash-tp3",
    user="root",
    system=True,
    around_ranks=False,
)


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("system", [False, True])
def test_systemd_has_nothing_to_say(tmp_path: Path, *, around: bool, system: bool) -> None:
    """`systemd-analyze verify` exits 0 whatever it finds: what it writes is the result."""
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is needed: apt install systemd")
    unit = replace(UNIT, around_ranks=around, system=system)
    path = tmp_path / unit.name
    path.write_text(unit.text())
    scope = [] if system else ["--user"]
    done = subprocess.run(
        ["systemd-analyze", *scope, "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    about = [line for line in (done.stderr + done.stdout).splitlines() if unit.name in line]
    assert done.returncode == 0, done.stderr
    assert about == []


def test_a_planted_mistake_is_told_by_the_same_check(tmp_path: Path) -> None:
    path = tmp_path / UNIT.name
    path.write_text(UNIT.text().replace("Restart=always", "Restart=perhaps"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    assert UNIT.name in done.stderr


def test_every_option_of_the_monitor_is_the_units_too() -> None:
    asked = ["--every", "10", "--look-every", "7", "--canary-bound", "30", "--observe-only"]
    call = [sys.executable, "-m", "orchestrator", "monitor", "--profile", "lab", "--show-unit"]
    done = subprocess.run([*call, *asked], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ExecStart=")]
    for word in ("--every 10", "--look-every 7", "--canary-bound 30", "--observe-only"):
        assert f" {word}" in line


def test_ranks_outlive_a_monitor_that_starts_them() -> None:
    assert "KillMode=process" in replace(UNIT, around_ranks=True).text()
    assert "ProtectSystem" not in replace(UNIT, around_ranks=True).text()
    assert "ProtectSystem=strict" in UNIT.text()


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("plain", "plain"),
        ("a b", '"a b"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('say "x"', '"say \\"x\\""'),
        ("", '""'),
    ],
)
def test_words_are_quoted_for_systemd(word: str, written: str) -> None:
    assert quoted(word) == written


@pytest.mark.parametrize(
    ("said", "wrong"), [("Linger=yes", ""), ("Linger=no", "enable-linger"), ("", "unknown")]
)
def test_a_user_who_does_not_linger_is_told_how(tmp_path: Path, said: str, wrong: str) -> None:
    """A program of that name answers instead of the machine's own, which may have no login manager."""
    program = tmp_path / "loginctl"
    program.write_text(f'#!/bin/sh\ntest "$2" = spark && echo {said}\n')
    program.chmod(0o755)
    code = "from orchestrator.watch.install import _lingers; _lingers('spark')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (wrong == ""), done.stderr
    assert wrong in done.stderr
