"""Whether two deployments answer alike: greedy tokens and their log-probabilities, prompt by prompt. Pure.

Equal tokens alone would be luck where one token is far ahead, and equal log-probabilities alone are never
exact: the ranks add up in another order. So both are asked for, the second with a tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# float32 noise between one rank and three is at most 1.2e-5 over 2,560 tokens; a wrong row moves 1e-2 and
# more.
LOGPROB_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Answer:
    """What one deployment said to one prompt. ``gap``: least distance of the best to the second-best
    token."""

    prompt: str
    concurrent: bool
    prompt_tokens: int
    cached_tokens: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    gap: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first place where two answers part."""

    prompt: str
    position: int
    expected_token: int | None
    found_token: int | None
    expected_logprob: float | None
    found_logprob: float | None

    def text(self) -> str:
        """One line for a person."""
        return (
            f"prompt {self.prompt!r}, generated token {self.position}: expected {self.expected_token} "
            f"({_figure(self.expected_logprob)}), found {self.found_token} ({_figure(self.found_logprob)})"
        )


@dataclass(frozen=True, slots=True)
class Equality:
    """The comparison of two sets of answers, and which paths of the engine they took."""

    tokens_equal: bool
    prompts: int
    equal_prompts: int
    tokens: int
    max_logprob_difference: float
    smallest_gap: float
    chunked_prompts: int
    prefix_hits: int
    concurrent_prompts: int
    first_mismatch: Mismatch | None

    def as_json(self) -> dict[str, Any]:
        """For reports; the mismatch as a line."""
        shown = {name: getattr(self, name) for name in self.__slots__ if name != "first_mismatch"}
        return {**shown, "first_mismatch": self.first_mismatch.text() if self.first_mismatch else None}


def compare(expected: Sequence[Answer], found: Sequence[Answer], *, chunk: int) -> Equality:
    """Compares answers to the same prompts. ``chunk``: tokens of a prefill chunk, to tell which prompts cross
    one.

    ``tokens_equal`` is false as well when the prompts took no chunk border, no cached prefix or no
    concurrency in the deployment under test: nothing would have been shown about those.
    """
    if [answer.prompt for answer in expected] != [answer.prompt for answer in found]:
        raise ValueError("the two deployments were not asked the same prompts")
    mismatches = [_mismatch(*pair) for pair in zip(expected, found, strict=True)]
    differences = [
        abs(one - other)
        for before, after in zip(expected, found, strict=True)
        for one, other in zip(before.logprobs, after.logprobs, strict=False)
    ]
    wrong = [mismatch for mismatch in mismatches if mismatch is not None]
    chunked = sum(answer.prompt_tokens - answer.cached_tokens > chunk for answer in found)
    hits = sum(answer.cached_tokens > 0 for answer in found)
    concurrent = sum(answer.concurrent for answer in found)
    return Equality(
        tokens_equal=not wrong and min(chunked, hits, concurrent) > 0,
        prompts=len(found),
        equal_prompts=len(found) - len(wrong),
        tokens=sum(len(answer.tokens) for answer in found),
        max_logprob_difference=max(differences, default=0.0),
        smallest_gap=min((answer.gap for answer in expected), default=0.0),
        chunked_prompts=chunked,
        prefix_hits=hits,
        concurrent_prompts=concurrent,
        first_mismatch=wrong[0] if wrong else None,
    )


def _mismatch(expected: Answer, found: Answer) -> Mismatch | None:
    for place in range(max(len(expected.tokens), len(found.tokens))):
        before, after = _at(expected, place), _at(found, place)
        same = before is not None and after is not None and before[0] == after[0]
        # A NaN compares false with everything, so it lands here too.
        if same and before and after and abs(before[1] - after[1]) <= LOGPROB_TOLERANCE:
            continue
        return Mismatch(
            found.prompt,
            place,
            before[0] if before else None,
            after[0] if after else None,
            before[1] if before else None,
            after[1] if after else None,
        )
    return None


def _at(answer: Answer, place: int) -> tuple[int, float] | None:
    if place >= len(answer.tokens):
        return None
    return answer.tokens[place], answer.logprobs[place]


def _figure(value: float | None) -> str:
    return "nothing" if value is None else f"logprob {value:.6f}"
