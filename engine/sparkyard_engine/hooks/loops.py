"""Ends a reply that repeats itself. A published stream looped over 714,000 tokens; no watchdog sees that.

The rule: an n-gram of at least 32 tokens four times in a row, 64 equal tokens, or 8 equal lines of at least 16
characters. All ranks see the same tokens and decide the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparkyard_engine.drift import Symbol

SYMBOL = Symbol("sglang.srt.managers.schedule_batch.Req.update_finish_state", ("self", "new_accepted_len"))
ALSO = (Symbol("sglang.srt.managers.schedule_batch.FINISH_MATCHED_STR", ("matched",)),)
EQUAL_TOKENS = 64
LEAST_PERIOD, MOST_PERIOD = 32, 1024
REPEATS = 4
EQUAL_LINES = 8
LEAST_LINE_CHARS = 16
CHECK_TOKENS = 16  # tokens between two looks at the tokens
CHECK_LINES_TOKENS = 128  # tokens between two looks at the text, which has to be decoded
LINES_TOKENS = 1024  # how much of the end is decoded
MATCHED = "repetition"


def repeats(tokens: Sequence[int]) -> bool:
    """Whether the end of `tokens` is one token or one n-gram over and over."""
    size = len(tokens)
    if size >= EQUAL_TOKENS and len(set(tokens[-EQUAL_TOKENS:])) == 1:
        return True
    last = tokens[-1] if size else None
    for period in range(LEAST_PERIOD, min(MOST_PERIOD, size // REPEATS) + 1):
        if tokens[-1 - period] != last:  # most periods end here
            continue
        span = period * (REPEATS - 1)
        if tokens[-span:] == tokens[-span - period : -period]:
            return True
    return False


def repeats_lines(text: str) -> bool:
    """Whether the last whole lines of `text` are equal. Empty lines do not count and do not interrupt."""
    lines = [line for line in text.split("\n")[:-1] if line.strip()][-EQUAL_LINES:]
    return len(lines) == EQUAL_LINES and len(set(lines)) == 1 and len(lines[0]) >= LEAST_LINE_CHARS


def crossed(before: int, after: int, step: int) -> bool:
    """Whether a multiple of `step` lies in (before, after]; several tokens may be accepted at once."""
    return after // step > before // step


def around(value: Any) -> Callable[..., Any]:
    """Looks after SGLang's own checks; requests that ignore the end token (load tests) are left alone."""
    del value

    def update_finish_state(original: Callable[..., Any], self: Any, new_accepted_len: int = 1) -> Any:
        result = original(self, new_accepted_len)
        if self.finished() or self.sampling_params.ignore_eos:
            return result
        after = len(self.output_ids)
        before = after - new_accepted_len
        found = crossed(before, after, CHECK_TOKENS) and repeats(
            list(self.output_ids[-REPEATS * MOST_PERIOD :])
        )
        if not found and self.tokenizer is not None and crossed(before, after, CHECK_LINES_TOKENS):
            found = repeats_lines(self.tokenizer.decode(self.output_ids[-LINES_TOKENS:]))
        if found:
            from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

            self.finished_reason = FINISH_MATCHED_STR(matched=MATCHED)
            self.finished_len = after
        return result

    return update_finish_state
