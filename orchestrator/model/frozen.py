"""The base of every model that comes from outside: frozen, closed, with bounded text."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable; an unknown key is an error. Validators are built when first used: a start needs few of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, defer_build=True)


def canonical(value: Any) -> str:
    """Canonical JSON (docs/formats.md)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def identity(value: Any) -> str:
    """Lower-case hex SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
