"""A few crash points of the packs and of the agent; the hardening suite tries every one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkyard_engine.engram import pack
from sparkyard_engine.slices import pack as slices
from tests.hardening import dying
from tests.hardening.test_crash_agent import ask_all, lasting, looks_the_same, node, whole, yard
from tests.hardening.test_crash_pack import Main, content, in_child, make_checkpoint, words

assert yard


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


def test_an_agent_dies_and_the_same_requests_finish(yard, tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    expected = lasting(ask_all(node(undisturbed, 0), yard[1])[-1].value)
    middle = len(dying.operations(undisturbed / "log")) // 2
    folder = tmp_path / "died"
    folder.mkdir()
    assert ask_all(node(folder, middle), yard[1])[-1].failure is not None
    again = ask_all(node(folder, None), yard[1])
    assert [answer.failure for answer in again if answer.failure] == []
    whole(folder / "root")
    looks_the_same(lasting(again[-1].value), expected, folder, undisturbed)
