"""The bill of materials and the licences are those of the locks that are installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.supply import ELSEWHERE, LOCKS, PAGE, UNKNOWN, Locked, bill, faults, licences, page, read_lock


def test_every_package_of_every_lock_has_a_hash(tmp_path: Path) -> None:
    for lock in LOCKS.values():
        assert read_lock(lock)
    (tmp_path / "bad.lock").write_text("a==1 \\\n    --hash=sha256:" + "0" * 64 + "\nb==2\n")
    with pytest.raises(ValueError, match="b has no hash"):
        read_lock(tmp_path / "bad.lock")


def test_the_page_is_what_is_installed() -> None:
    known, locked = licences(sys.executable), read_lock(LOCKS["controller"])
    assert faults(locked, known) == []
    written, made = PAGE.read_text().splitlines(), page(locked, known).splitlines()
    # which versions a lock installs depends on the Python: rows that are not installed here were, where it was written
    differ = [
        new for old, new in zip(written, made, strict=True) if old != new and ELSEWHERE not in old + new
    ]
    assert differ == [], "python -m tests.supply --write"


def test_a_difference_is_named() -> None:
    locked = [Locked("a", "1", ("0" * 64,), ""), Locked("b", "1", ("0" * 64,), "")]
    assert faults(locked, {"a": ("2", UNKNOWN)}) == [
        "a: 2 is installed, the lock says 1",
        "a 2 names no licence",
        "b 1 is locked and not installed",
    ]


def test_a_bill_of_materials_is_cyclonedx() -> None:
    made = json.loads(
        json.dumps(bill("controller", read_lock(LOCKS["controller"]), licences(sys.executable)))
    )
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    references = [component["bom-ref"] for component in made["components"]]
    assert len(references) == len(set(references)) > 20
    assert all(component["purl"].startswith("pkg:pypi/") for component in made["components"])
    assert any("licenses" in component for component in made["components"])
