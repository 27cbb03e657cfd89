"""Values from records that somebody else wrote: what is damaged, or of another version, costs its own value only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NUMBER_MAX = 1 << 63


def is_digest(value: Any) -> bool:
    """Whether it is a SHA-256 as hex."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def inner(value: Any, key: str) -> dict[str, Any]:
    """The object under ``key``; empty when there is none."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, dict) else {}


def text(value: Any, key: str, default: str = "", limit: int = 4000) -> str:
    """The text under ``key``, shortened; ``default`` for anything else."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found[:limit] if isinstance(found, str) and found else default


def whole(value: Any, key: str) -> int | None:
    """The whole number of at most 63 bits under ``key``; None for anything else."""
    found = value.get(key) if isinstance(value, Mapping) else None
    good = isinstance(found, int) and not isinstance(found, bool) and -NUMBER_MAX < found < NUMBER_MAX
    return found if good else None


def number(value: Any, key: str) -> float | None:
    """The finite number under ``key``; None for anything else."""
    found = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return found if math.isfinite(found) and abs(found) < NUMBER_MAX else None
