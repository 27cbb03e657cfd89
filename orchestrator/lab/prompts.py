"""The prompts of the comparison: token ids from a seed, shaped so that every path of the engine is taken.
Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_TOKEN, LAST_TOKEN = 3, 1023  # of the lab's vocabulary, without the three special tokens
NEW_TOKENS = 16
CONCURRENT = 4  # requests at a time in the second part; the pool has 8 places


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request. ``name`` says which path it is for. Prompts of one ``wave`` are asked at the same time."""

    name: str
    wave: int
    tokens: tuple[int, ...]


def prompts(seed: int, chunk: int) -> tuple[Prompt, ...]:
    """24 prompts for an engine with prefill chunks of ``chunk`` tokens (at least 16).

    Short ones, ones around a chunk's border, ones over several chunks; ones that share a prefix with an
    earlier one, with short suffixes (a wrong look-back at the border of a cached prefix fades over the tokens
    that follow); the same one twice; and two waves of four at a time, two of each sharing a prefix.
    """
    rng = random.Random(seed)  # noqa: S311 - test material
    made: list[Prompt] = []

    def text(length: int) -> tuple[int, ...]:
        # Squared: small ids are frequent, as in real text, so that n-grams come up again.
        span = LAST_TOKEN - FIRST_TOKEN
        return tuple(FIRST_TOKEN + int(span * rng.random() ** 2) for _ in range(length))

    def ask(name: str, tokens: tuple[int, ...], wave: int | None = None) -> None:
        made.append(Prompt(name, len(made) if wave is None else wave, tokens))

    for length in (1, 2, 3, 7):
        ask(f"short {length}", text(length))
    for length in (chunk - 1, chunk, chunk + 1, 2 * chunk, 4 * chunk + 3):
        ask(f"{length} tokens, chunks of {chunk}", text(length))
    shared = text(chunk + chunk // 4)
    for suffix in (1, 1, 2, 3):
        ask(f"shared prefix of {len(shared)} and {suffix}", shared + text(suffix))
    short_prefix = text(chunk // 4)
    for suffix in (1, 2):
        ask(f"shared prefix of {len(short_prefix)} and {suffix}", short_prefix + text(suffix))
    ask("asked again", made[4].tokens)
    for wave in (1000, 1001):
        common = shared[: chunk // 2]
        ask("concurrent, cached prefix", common + text(2), wave)
        ask("concurrent, cached prefix and a chunk border", shared + text(chunk), wave)
        ask("concurrent, short", text(5), wave)
        ask("concurrent, over two chunks", text(chunk + chunk // 2), wave)
    return tuple(made)
