"""Which hooks a rank switches on, and when a reply repeats itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkyard_engine import hooks
from sparkyard_engine.hooks import api_key, effort, loops


def test_each_hook_has_its_own_switch() -> None:
    assert [each.hook.setting for each in hooks.wanted({})] == ["gate_on_loopback"]
    on = hooks.wanted({"loop_abort": True, "effort_table": False, "prefill_empty_cache_tokens": 8192})
    assert [(each.hook.setting, each.value) for each in on] == [
        ("loop_abort", True),
        ("prefill_empty_cache_tokens", 8192),
        ("gate_on_loopback", True),
    ]
    assert len({symbol.path for symbol in hooks.symbols(on)}) == len(hooks.symbols(on))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([7] * 64, True),
        ([1, 2, 3] + [7] * 63, False),
        ([1, 2, 3] * 100, True),  # a short cycle is an n-gram of 33 tokens, too
        (list(range(40)) * 4, True),
        (list(range(40)) * 3 + list(range(39)), False),
        (list(range(31)) * 4, False),
        ([9, 9] + list(range(500)) * 4, True),
        (list(range(5000)), False),
        ([], False),
    ],
)
def test_repetition_of_tokens(tokens: list[int], expected: bool) -> None:
    assert loops.repeats(tokens) is expected


@given(st.lists(st.integers(0, 3), min_size=32, max_size=60), st.lists(st.integers(0, 3), max_size=50))
@settings(max_examples=80, derandomize=True)
def test_any_long_phrase_four_times_is_found(phrase: list[int], before: list[int]) -> None:
    assert loops.repeats(before + phrase * 4)


@given(st.lists(st.integers(), unique=True, max_size=400))
@settings(max_examples=40, derandomize=True)
def test_text_without_a_repetition_is_left_alone(tokens: list[int]) -> None:
    assert not loops.repeats(tokens)


def test_repetition_of_lines() -> None:
    line = "I will now check the file again.\n"
    assert loops.repeats_lines("Fine.\n" + line * 8)
    assert loops.repeats_lines((line + "\n") * 8)
    assert not loops.repeats_lines(line * 7)
    assert not loops.repeats_lines("short line\n" * 20)
    assert not loops.repeats_lines(line * 7 + "I will now check")


@given(st.integers(0, 1000), st.integers(1, 8), st.integers(1, 64))
@settings(max_examples=60, derandomize=True)
def test_a_look_is_never_skipped_when_several_tokens_are_accepted(before: int, new: int, step: int) -> None:
    assert loops.crossed(before, before + new, step) is any(
        count % step == 0 for count in range(before + 1, before + new + 1)
    )


def test_the_key_comes_from_the_file_and_never_from_nowhere(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    assert api_key.around(str(key))(list, ["--port", "1"]) == ["--port", "1", "--api-key", "secret"]
    key.write_text("")
    with pytest.raises(SystemExit, match="holds no API key"):
        api_key.around(str(key))(list, [])
    with pytest.raises(SystemExit, match="No such file"):
        api_key.around(str(tmp_path / "none"))(list, [])


def test_effort_names_mean_what_the_publisher_says() -> None:
    convert = effort.around(True)
    assert [convert(lambda value: value, name) for name in ("low", "high", "max", "xhigh", 30, None)] == [
        *(50, 75, 100),
        *("xhigh", 30, None),
    ]
