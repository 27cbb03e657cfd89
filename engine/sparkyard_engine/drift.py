"""Whether SGLang still has the places that the plug-in takes hold of, under these names and with these
parameters.

SGLang only logs a hook whose target is gone and serves without it. So the plug-in looks first and refuses by
name.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dotted name that must resolve. ``parameters``: names that a call must take, in this order; None: no
    call."""

    path: str
    parameters: tuple[str, ...] | None = None


def problems(symbols: Iterable[Symbol]) -> list[str]:
    """One line for each symbol that is not as it was; imports the modules that hold them."""
    return [problem for symbol in symbols if (problem := _problem(symbol)) is not None]


def _problem(symbol: Symbol) -> str | None:
    try:
        found = pkgutil.resolve_name(symbol.path)
    except (ImportError, AttributeError) as error:
        return f"{symbol.path}: gone ({error})"
    if symbol.parameters is None:
        return None
    try:
        taken = tuple(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return f"{symbol.path}: expected something that can be called, found {type(found).__name__}"
    if taken != symbol.parameters:
        return (
            f"{symbol.path}: expected parameters ({', '.join(symbol.parameters)}), found ({', '.join(taken)})"
        )
    return None
