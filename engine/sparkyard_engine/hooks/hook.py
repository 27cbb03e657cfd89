"""The shape of a hook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkyard_engine.drift import Symbol


@dataclass(frozen=True, slots=True)
class Hook:
    """Around `symbol`, when `setting` is on. `make(value)` gives the AROUND function; `also` must exist too."""

    setting: str
    symbol: Symbol
    make: Callable[[Any], Callable[..., Any]]
    also: tuple[Symbol, ...]
