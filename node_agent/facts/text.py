"""Small parsers that several readers need. Pure."""

from __future__ import annotations

import re

MAX_TEXT = 2000  # characters kept of any single text that comes from a node
NOT_AVAILABLE = frozenset(
    {
        "",
        "n/a",
        "[n/a]",
        "not supported",
        "[not supported]",
        "[unknown error]",
        "-",
        "[not found]",
        "none",
        "unknown",
    }
)


def number(text: str | None) -> float | None:
    """The first number of `text`; None for every way in which NVIDIA's tools say that there is none.

    >>> number("11.17 W"), number("[N/A]"), number("0 %"), number("1,5")
    (11.17, None, 0.0, None)
    """
    if text is None or text.strip().lower() in NOT_AVAILABLE:
        return None
    found = re.fullmatch(r"\s*([-+]?\d+(?:\.\d+)?)(?:\s*[^\s\d,.][^\d,]*)?\s*", text[:MAX_TEXT])
    return float(found.group(1)) if found else None


def whole(text: str | None, base: int = 10) -> int | None:
    """`text` as an integer, or None. With base 0, `0x…` is understood."""
    if text is None:
        return None
    stripped = text.strip()
    if len(stripped) > 32 or not re.fullmatch(r"[-+]?(0[xX])?[0-9a-fA-F]+", stripped):
        return None
    try:
        return int(stripped, base)
    except ValueError:
        return None


def line(text: str | None) -> str | None:
    """First line of `text` without spaces at its ends; None when nothing is left."""
    if text is None:
        return None
    stripped = text.replace("\r", "\n").lstrip("\n").partition("\n")[0].strip()[:MAX_TEXT]
    return stripped or None


def lines(text: str) -> list[str]:
    """Lines, whatever ends them, without trailing spaces."""
    return [item.rstrip() for item in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
