"""A few crash points of the packs; the hardening suite tries every one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkyard_engine.engram import pack
from sparkyard_engine.slices import pack as slices
from tests.hardening import dying
from tests.hardening.test_crash_pack import Main, content, in_child, make_checkpoint, words


@pytest.mark.parametrize(("kind", "main"), [("tables", pack.main), ("slices", slices.main)])
def test_a_pack_dies_and_the_next_run_finishes(tmp_path: Path, kind: str, main: Main) -> None:
    make_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "whole").mkdir()
    assert (
        in_child(main, words(tmp_path / "checkpoint", tmp_path / "whole" / "s", kind), 0, tmp_path / "log")
        == 0
    )
    operations = len(dying.operations(tmp_path / "log"))
    for number in (operations // 2, operations - 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        argv = words(tmp_path / "checkpoint", folder / "s", kind)
        assert in_child(main, argv, number, folder / "log") == dying.EXIT_CODE
        assert in_child(main, argv, 0, folder / "again") == 0
        assert content(folder / "s") == content(tmp_path / "whole" / "s")
