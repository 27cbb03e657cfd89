"""The comparison of two deployments: what counts as equal, and which prompts are asked."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.lab.equality import LOGPROB_TOLERANCE, Answer, compare
from orchestrator.lab.local import PORTS, _free_ports, reference
from orchestrator.lab.prompts import FIRST_TOKEN, LAST_TOKEN, prompts
from orchestrator.load import load_profile

CHUNK = 64


def answers() -> list[Answer]:
    """Three answers that take a chunk border, a cached prefix and concurrency."""
    return [
        Answer("long", False, 200, 0, (5, 6, 7), (-0.5, -1.0, -0.25), 0.3),
        Answer("hit", False, 70, 66, (8, 9, 10), (-0.1, -0.2, -0.3), 0.2),
        Answer("beside", True, 9, 0, (1, 2, 3), (-0.7, -0.8, -0.9), 0.1),
    ]


def test_same_answers_are_equal() -> None:
    noisy = [
        replace(answer, logprobs=tuple(value + LOGPROB_TOLERANCE / 2 for value in answer.logprobs))
        for answer in answers()
    ]
    result = compare(answers(), noisy, chunk=CHUNK)
    assert result.tokens_equal
    assert (result.prompts, result.equal_prompts, result.tokens, result.smallest_gap) == (3, 3, 9, 0.1)
    assert result.max_logprob_difference == pytest.approx(LOGPROB_TOLERANCE / 2)
    assert result.as_json()["first_mismatch"] is None


@given(
    prompt=st.integers(0, 2),
    place=st.integers(0, 2),
    fault=st.sampled_from(["token", "logprob", "nan", "shorter", "longer"]),
)
def test_any_fault_is_seen_and_named(prompt: int, place: int, fault: str) -> None:
    found = answers()
    answer = found[prompt]
    tokens, logprobs = list(answer.tokens), list(answer.logprobs)
    if fault == "token":
        tokens[place] += 1
    elif fault == "logprob":
        logprobs[place] += 1.5 * LOGPROB_TOLERANCE
    elif fault == "nan":
        logprobs[place] = float("nan")
    elif fault == "shorter":
        tokens, logprobs = tokens[:place], logprobs[:place]
    else:
        place = len(tokens)
        tokens, logprobs = [*tokens, 4], [*logprobs, -1.0]
    found[prompt] = replace(answer, tokens=tuple(tokens), logprobs=tuple(logprobs))
    result = compare(answers(), found, chunk=CHUNK)
    assert not result.tokens_equal
    assert result.equal_prompts == 2
    assert result.first_mismatch is not None
    assert (result.first_mismatch.prompt, result.first_mismatch.position) == (answer.prompt, place)
    assert answer.prompt in str(result.as_json()["first_mismatch"])


@pytest.mark.parametrize("untaken", ["chunk", "hit", "concurrency"])
def test_a_path_that_was_not_taken_proves_nothing(untaken: str) -> None:
    changes = {
        "chunk": {"prompt_tokens": 60},
        "hit": {"cached_tokens": 0},
        "concurrency": {"concurrent": False},
    }
    found = [replace(answer, **changes[untaken]) for answer in answers()]
    result = compare(found, found, chunk=CHUNK)
    assert result.equal_prompts == 3
    assert not result.tokens_equal


def test_other_prompts_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="same prompts"):
        compare(answers(), answers()[:2], chunk=CHUNK)


def test_prompts_take_every_path() -> None:
    asked = prompts(1, CHUNK)
    assert asked == prompts(1, CHUNK) != prompts(2, CHUNK)
    assert len(asked) >= 20
    assert len({prompt.name for prompt in asked}) > 10
    assert all(FIRST_TOKEN <= token <= LAST_TOKEN for prompt in asked for token in prompt.tokens)
    assert sum(len(prompt.tokens) > CHUNK for prompt in asked) >= 5
    waves = [prompt.wave for prompt in asked]
    assert max(waves.count(wave) for wave in waves) == 4
    starts = [prompt.tokens[: CHUNK // 4] for prompt in asked if len(prompt.tokens) > CHUNK // 4]
    assert len(starts) - len(set(starts)) >= 8
    assert max(len(prompt.tokens) for prompt in asked) + 16 < 2048


def test_the_reference_is_unpadded_and_in_memory() -> None:
    profile = load_profile("lab")
    other = reference(profile)
    assert (other.parallel.tp, other.parallel.padding, other.engram.mode) == (1, None, "memory")
    assert other.settings == profile.settings
    assert other.model == profile.model


def test_two_runs_never_choose_the_same_ports() -> None:
    with _free_ports() as first:
        with _free_ports() as second:
            assert abs(first - second) >= PORTS
        with _free_ports() as again:
            assert again == second
