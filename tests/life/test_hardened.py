"""An agent that dies in the middle, and one that never ends its line; the hardening suite tries every crash point."""

from __future__ import annotations

from pathlib import Path

from tests.hardening import dying
from tests.hardening.test_crash_agent import ask_all, lasting, looks_the_same, node, whole, yard
from tests.quick.test_refusals import MEMORY_MAX_BYTES, run_verb

assert yard


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


def test_a_line_of_2_gib_is_given_up_after_8_mib(tmp_path: Path) -> None:
    done, peak_bytes = run_verb(tmp_path, "long", "status")
    assert done.returncode == 3
    assert "a line of over 8,388,608 bytes" in done.stdout + done.stderr
    assert peak_bytes < MEMORY_MAX_BYTES
