"""Row ids as real text asks for them.

The text is what Python ships as its own language reference (pydoc's topics: English prose with code). It is cut into
pieces the way sub-word tokenizers do (a word with its leading space, long words in parts), numbered first-come; the
n-gram statistics that de-duplication lives on are those of the text.
"""

from __future__ import annotations

import re
from pydoc_data.topics import topics  # type: ignore[import-untyped]

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram.hashing import Hasher, Layout

PIECE = re.compile(r" ?[^\W\d_]{1,7}|\d{1,3}| ?[^\w\s]{1,3}|_|\s+")
COMPRESSED_VOCAB = 99_092


def text_tokens() -> NDArray[np.int64]:
    """int64[about 190,000]."""
    numbers: dict[str, int] = {}
    text = "\n".join(topics[name] for name in sorted(topics))
    pieces = (numbers.setdefault(piece.lower(), len(numbers)) for piece in PIECE.findall(text))
    return np.fromiter(pieces, dtype=np.int64) % COMPRESSED_VOCAB


def text_rows(layout: Layout) -> NDArray[np.int64]:
    """int64[tokens, layers, columns]: row ids of the whole text as one sequence."""
    tokens = text_tokens()
    hasher = Hasher.build(layout, np.arange(COMPRESSED_VOCAB), 2, COMPRESSED_VOCAB)
    return hasher.row_ids(*hasher.windows(tokens))
