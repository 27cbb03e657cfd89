"""Real text to make prompts from: what Python and sparkyard's own libraries ship. Nothing is repeated,
nothing invented.

A prompt of one repeated token reads one Engram row over and over and overstates prefill by a fifth and more;
these texts have the n-gram variety of real use. The same seed on the same Python and libraries gives the same
prompts; every row carries the digest of its prompts, so that a difference shows.
"""

from __future__ import annotations

import importlib.util
import pydoc_data.topics
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from orchestrator.errors import SparkyardError

Pool = Literal["prose", "code", "document"]

LIBRARIES = (
    "pydantic",
    "rich",
    "typer",
    "asyncssh",
    "textual",
    "httpx",
    "fabric",
    "invoke",
    "psutil",
    "click",
    "yaml",
)
NOT_TEXT = frozenset({"test", "tests", "idle_test", "site-packages", "lib2to3", "pydoc_data", "__pycache__"})
MIN_PASSAGE_CHARACTERS = 300  # shorter docstrings are labels, not text
HEADER = re.compile(r"\A(?:#[^\n]*\n|\s*\n)+")  # licence headers repeat from file to file
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
SYMBOL_SHARE = 0.12  # more punctuation than this is a table or an example, not prose


def description() -> str:
    """What the text is, for the record."""
    return f"Python {sys.version.split()[0]} standard library and documentation; {', '.join(LIBRARIES)}"


@cache
def _sources() -> tuple[Path, ...]:
    roots = [Path(sysconfig.get_path("stdlib"))]
    for name in LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            roots.append(Path(spec.origin).parent)
    return tuple(
        path
        for root in roots
        for path in sorted(root.rglob("*.py"))
        if not NOT_TEXT & set(path.relative_to(root).parts)
    )


def _paragraphs(text: str) -> Iterator[str]:
    """Prose paragraphs, lines joined; tables, examples and short pieces left out."""
    collected = ""
    for block in re.split(r"\n\s*\n", text):
        line = " ".join(block.split())
        symbols = sum(not (char.isalnum() or char in " .,;:'\"()-") for char in line)
        if len(line) < 60 or line.startswith(">>>") or symbols > SYMBOL_SHARE * len(line):
            continue
        collected = f"{collected} {line}".strip()
        if len(collected) >= MIN_PASSAGE_CHARACTERS:
            yield collected
            collected = ""


def _passages(pool: Pool, seed: str) -> Iterator[str]:
    """Every passage of the pool once, in an order that the seed sets; files are read as they are needed."""
    chance = random.Random(seed)  # noqa: S311 - reproducible order, no secret
    sources = list(_sources())
    chance.shuffle(sources)
    if pool == "prose":
        topics = [passage for text in pydoc_data.topics.topics.values() for passage in _paragraphs(text)]
        chance.shuffle(topics)
        yield from topics
    for path in sources:
        try:
            text = HEADER.sub("", path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        match pool:
            case "prose":
                for docstring in DOCSTRING.findall(text):
                    yield from _paragraphs(docstring)
            case "code":
                pieces = re.split(r"\n(?=(?:class|def|async def|@)\b)", text)
                yield from (piece for piece in pieces if len(piece) >= MIN_PASSAGE_CHARACTERS)
            case "document":
                if len(text) >= MIN_PASSAGE_CHARACTERS:
                    yield f"File {path.name}:\n{text}"


class Reservoir:
    """Hands out text of one pool, each passage at most once: one reservoir serves a whole run, so that no
    prompt finds another's beginning in the prefix cache.

    Args:
        pool: which text.
        seed: sets the order; two reservoirs with one seed hand out the same.
    """

    def __init__(self, pool: Pool, seed: str) -> None:
        self._pool = pool
        self._passages = _passages(pool, seed)
        self._rest = ""
        self._given = 0

    def take(self, characters: int) -> str:
        """The next `characters` characters, beginning at a fresh passage.

        Raises:
            SparkyardError: the text is used up; nothing is repeated to make up for it.
        """
        parts: list[str] = []
        have = 0
        while have < characters:
            passage = next(self._passages, None)
            if passage is None:
                raise SparkyardError(
                    f"bench: the {self._pool} text is used up after {self._given + have:,} characters and "
                    "nothing is repeated to fill a prompt; ask for fewer rounds or shorter prompts, "
                    "or for the kind document, which has the most text"
                )
            parts.append(passage)
            have += len(passage) + 1
        self._given += characters
        return "\n".join(parts)[:characters]
