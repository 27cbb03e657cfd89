"""Hooks for what stock SGLang lacks and stability needs. Each has a switch of its own and names what it takes hold of.

A hook is one module and one line in `HOOKS`. `around` has the signature that SGLang gives AROUND hooks:
`(original, *args, **kwargs) -> result`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkyard_engine.drift import Symbol
from sparkyard_engine.hooks import api_key, effort, empty_cache, gate, loops, scales, thinking
from sparkyard_engine.hooks.hook import Hook

HOOKS: tuple[Hook, ...] = (
    Hook("api_key_file", api_key.SYMBOL, api_key.around, ()),
    Hook("effort_table", effort.SYMBOL, effort.around, ()),
    Hook("loop_abort", loops.SYMBOL, loops.around, loops.ALSO),
    Hook("prefill_empty_cache_tokens", empty_cache.SYMBOL, empty_cache.around, empty_cache.ALSO),
    Hook("repair_block_scales", scales.SYMBOL, scales.around, ()),
    Hook("thinking_alias", thinking.SYMBOL, thinking.around, ()),
)
ALWAYS: tuple[Hook, ...] = (Hook("gate_on_loopback", gate.SYMBOL, gate.around, ()),)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A hook that is switched on, and its value."""

    hook: Hook
    value: Any


def wanted(settings: Mapping[str, Any]) -> tuple[Wanted, ...]:
    """The hooks that the rank spec's settings switch on, and those that are always on."""
    on = [Wanted(hook, settings[hook.setting]) for hook in HOOKS if settings.get(hook.setting)]
    return (*on, *(Wanted(hook, True) for hook in ALWAYS))


def symbols(hooks: tuple[Wanted, ...]) -> tuple[Symbol, ...]:
    """Everything that these hooks need to find in SGLang."""
    return tuple(symbol for each in hooks for symbol in (each.hook.symbol, *each.hook.also))
