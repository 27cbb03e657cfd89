"""Prompts: real, unique, reproducible, of the asked length."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.bench.options import Options, quick
from orchestrator.bench.prompts import KINDS, Prompts, digest, pool_of
from orchestrator.bench.record import PromptKind
from orchestrator.bench.texts import Reservoir
from orchestrator.errors import SparkyardError


def some(kind: PromptKind, seed: int, count: int = 12) -> list[tuple[dict[str, str], ...]]:
    prompts = Prompts(kind, Reservoir(pool_of(kind), str(seed)), seed)
    return [prompts.one(300, 128) for _ in range(count)]


@pytest.mark.parametrize("kind", [*KINDS, PromptKind.DOCUMENT])
def test_prompts_are_reproducible_unique_and_as_long_as_asked(kind: PromptKind) -> None:
    prompts = some(kind, 1)
    assert digest(prompts) == digest(some(kind, 1))
    assert digest(prompts) != digest(some(kind, 2))
    texts = [prompt[0]["content"] for prompt in prompts]
    assert all(len(text) == pytest.approx(1200, rel=0.05) for text in texts)
    for one, other in itertools.combinations(texts, 2):
        assert one[:40] != other[:40], "prompts that begin alike share cached prefixes"


@pytest.mark.parametrize("kind", KINDS)
def test_no_prompt_is_filler(kind: PromptKind) -> None:
    words = " ".join(prompt[0]["content"] for prompt in some(kind, 3)).split()
    fourgrams = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    assert len(set(fourgrams)) > 0.85 * len(fourgrams)


def test_a_needle_lies_where_it_should() -> None:
    prompts = Prompts(PromptKind.DOCUMENT, Reservoir("document", "n"), 5)
    for depth in (0.1, 0.5, 0.9):
        needle = prompts.needle(4000, depth)
        content = needle.messages[0]["content"]
        assert content.count(needle.answer) == 1
        assert content.index(needle.answer) / len(content) == pytest.approx(depth, abs=0.05)


def test_used_up_text_is_said_and_not_repeated() -> None:
    with pytest.raises(SparkyardError, match=r"the prose text is used up after .* nothing is repeated"):
        Reservoir("prose", "x").take(10**9)


def test_lengths_go_as_far_as_the_context() -> None:
    assert Options().lengths(262_144) == (4_096, 16_384, 32_768, 65_536, 131_072)
    assert Options().lengths(1_048_576)[-1] == 524_288
    assert Options().lengths(2_048) == (512, 1024, 1843)
    assert quick().lengths(2_048) == (128, 512)


def test_options_refuse_what_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="kinds: filler cannot be sent"):
        Options(kinds=(PromptKind.FILLER,))
    with pytest.raises(ValueError, match="streams: each must be 1 to 256"):
        Options(streams=(0,))
