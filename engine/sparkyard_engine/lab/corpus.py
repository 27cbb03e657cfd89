"""The text that the lab's tokenizer is trained on: invented words with the spread of real ones. Seeded."""

import numpy as np

WORDS = 1500
SENTENCES = 6000
ONSETS = (
    "b",
    "br",
    "c",
    "d",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
)
VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou", "é", "ö")
CODAS = ("", "", "l", "m", "n", "nd", "r", "s", "st", "t")
# Plain English as people type it at the smoke test, so that it does not fall apart into bytes.
FAMILIAR = (
    "the quick brown fox jumps over the lazy dog and asks what the weather is like in the yard today",
    "please answer in one short sentence how many nodes are up and which of them is the head",
    "hello who are you and what can you do for me this is a test of the lab so count from one to ten",
)


def sentences(seed: int) -> list[str]:
    """Sentences of 4 to 14 words. Frequencies follow Zipf's law; some words are capitalised, some in
    capitals.

    Case, accents and spaces matter: Engram's token compression merges tokens that differ in them only, and a
    corpus without such pairs would leave that step untested.
    """
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    words = [_word(rng) for _ in range(WORDS)]
    weights = 1.0 / np.arange(1, WORDS + 1)
    weights /= weights.sum()
    made = []
    for _ in range(SENTENCES):
        length = int(rng.integers(4, 15))
        chosen = [words[int(place)] for place in rng.choice(WORDS, size=length, p=weights)]
        style = int(rng.integers(0, 12))
        if style == 0:
            chosen = [word.upper() for word in chosen]
        elif style <= 4:
            chosen = [word.capitalize() for word in chosen]
        else:
            chosen[0] = chosen[0].capitalize()
        made.append(" ".join(chosen) + (".", "?", "!", ", 12.", ":\n", ";  ")[int(rng.integers(0, 6))])
    return made + list(FAMILIAR) * 40


def _word(rng: np.random.Generator) -> str:
    syllables = int(rng.integers(1, 4))
    return "".join(
        ONSETS[int(rng.integers(0, len(ONSETS)))]
        + VOWELS[int(rng.integers(0, len(VOWELS)))]
        + CODAS[int(rng.integers(0, len(CODAS)))]
        for _ in range(syllables)
    )
