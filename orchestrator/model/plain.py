"""Text that came from elsewhere, made harmless: no terminal obeys it, every file can hold it. The one place for it.

A node, a capture or a file that somebody sent may hold escape sequences, which move the cursor, retitle the window or
type an answer; marks that turn the reading direction around; or half a surrogate pair, which no UTF-8 file can hold.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

ROW_CONTROLS = (*range(9), *range(11, 32), 127, *range(128, 160))
"""C0 without tab and line feed, DEL, and C1: in UTF-8 terminals U+009B begins an escape sequence as ESC [ does."""
DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Marks that reorder what is shown (the attack called Trojan Source), and two line ends that only Unicode knows."""
HIDDEN = "·"
SURROGATES = re.compile("[\ud800-\udfff]")
CONTROLS = dict.fromkeys((*ROW_CONTROLS, *DIRECTIONS), HIDDEN)
UNSAFE = re.compile(f"[{''.join(map(chr, (*ROW_CONTROLS, *DIRECTIONS)))}\ud800-\udfff]")
NUMBER_MAX = 1 << 64
"""No node measures more; Python's integers have no bound, and arithmetic on huge ones fails or takes long."""
DEPTH_MAX = 64
"""The facts of a node nest 9 deep."""


def rows(text: str) -> str:
    """Text whose line feeds and tabs stay, and nothing else that a terminal would obey."""
    if text.isprintable():
        return text
    return SURROGATES.sub("\ufffd", text.translate(CONTROLS))


def clean(text: str) -> str:
    """As `rows`, on one line."""
    return rows(text).replace("\t", " ").replace("\n", " ")


def found_in(text: str) -> str:
    """The first character of ``text`` that `rows` would replace, by its code point; empty when there is none."""
    seen = UNSAFE.search(text)
    return f"U+{ord(seen[0]):04X}" if seen else ""


def plain(value: Any, depth: int = 0) -> Any:
    """A JSON value with harmless texts and keys.

    Raises:
        ValueError: a number that is not finite or beyond 64 bits, or more than `DEPTH_MAX` levels.
    """
    match value:
        case str():
            return rows(value)
        case bool() | None:
            return value
        case int() if abs(value) >= NUMBER_MAX:
            raise ValueError("a number beyond 64 bits")
        case float() if not math.isfinite(value):
            raise ValueError("a number that is not finite")
        case dict() | list() if depth >= DEPTH_MAX:
            raise ValueError(f"nested more than {DEPTH_MAX} deep")
        case dict():
            return {rows(key): plain(entry, depth + 1) for key, entry in value.items()}
        case list():
            return [plain(entry, depth + 1) for entry in value]
    return value


def json_line(value: Any) -> str:
    """One line of JSON that reads back as ``value``, safe to print: what a terminal would obey stands as an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return UNSAFE.sub(lambda seen: f"\\u{ord(seen[0]):04x}", text)
