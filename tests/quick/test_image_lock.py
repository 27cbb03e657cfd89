"""The wheels of the engine image: pinned, with hashes, in the versions that the plug-in is verified against."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.load import load_profile

LOCK = Path(__file__).parents[2] / "engine" / "requirements-image.lock"


def test_every_wheel_is_pinned_and_hashed() -> None:
    entries = re.split(r"\n(?=[a-z0-9])", LOCK.read_text("utf-8").strip())
    assert len(entries) > 150
    for entry in entries:
        assert re.match(r"[a-z0-9][a-z0-9._-]*(\[[a-z0-9,-]+\])?==[^ ]+ ", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]
    versions = dict(re.findall(r"^([a-z0-9._-]+)==([^ ]+) ", LOCK.read_text("utf-8"), re.MULTILINE))
    assert versions["sglang"] == load_profile("deepseek-v4.1-flash-tp3").engine.version
    assert versions["nvidia-nccl-cu13"] == "2.30.7"  # the version whose parameter names are recorded
