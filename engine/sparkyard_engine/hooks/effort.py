"""Reasoning effort as the publisher means it: low 50, high 75, max 100 (SGLang: 25, 50 and 100)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkyard_engine.drift import Symbol

SYMBOL = Symbol("sglang.srt.entrypoints.openai.serving_deepseek_recipe._numeric_effort", ("effort",))
BUDGETS = {"low": 50, "high": 75, "max": 100}


def around(value: Any) -> Callable[..., Any]:
    """Names become the numbers that SGLang passes on as they are; numbers and other names stay."""
    del value

    def numeric_effort(original: Callable[..., Any], effort: Any) -> Any:
        return BUDGETS.get(effort, original(effort)) if isinstance(effort, str) else original(effort)

    return numeric_effort
