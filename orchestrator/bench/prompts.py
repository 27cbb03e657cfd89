"""Prompts of every kind, from real text, unique, reproducible by seed. Pure but for reading the text."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from orchestrator.bench.record import PromptKind
from orchestrator.bench.texts import Pool, Reservoir

KINDS = (
    PromptKind.PROSE,
    PromptKind.CODE,
    PromptKind.STRUCTURED,
    PromptKind.JSON,
    PromptKind.COUNTING,
    PromptKind.REASONING,
)
DEPOTS = ("north", "south", "east", "west", "harbour", "hill", "river", "forest")
TYPICAL_CHARACTERS_PER_TOKEN = 4.0  # first guess before the server has counted a prompt
MIN_EXCERPT_CHARACTERS = 40

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Needle:
    """A fact hidden in a long text and the answer that proves it was found."""

    messages: tuple[Message, ...]
    answer: str


def pool_of(kind: PromptKind) -> Pool:
    """Which text a kind of prompt is made from."""
    match kind:
        case PromptKind.PROSE | PromptKind.STRUCTURED | PromptKind.JSON | PromptKind.REASONING:
            return "prose"
        case PromptKind.COUNTING:
            return "prose"
        case PromptKind.CODE:
            return "code"
        case PromptKind.DOCUMENT:
            return "document"
        case PromptKind.FILLER | PromptKind.UNSTATED:
            raise ValueError(f"{kind} is a kind of imported tables; sparkyard does not send it")
        case _:
            assert_never(kind)


def digest(conversations: Sequence[Sequence[Message]]) -> str:
    """One digest over all prompts of a row."""
    return hashlib.sha256(json.dumps(conversations, ensure_ascii=True).encode()).hexdigest()


class Prompts:
    """Makes prompts of one kind, no two alike.

    The text comes first and the task last, because prompts that begin alike share cached prefixes.

    Args:
        kind: what the prompts hold.
        text: where excerpts are taken from, of `pool_of(kind)`; shared by the whole run.
        seed: sets the numbers in tasks.
        characters_per_token: as counted by the server for this kind.
    """

    def __init__(
        self,
        kind: PromptKind,
        text: Reservoir,
        seed: int,
        characters_per_token: float = TYPICAL_CHARACTERS_PER_TOKEN,
    ) -> None:
        self.kind = kind
        self._text = text
        self._chance = random.Random(f"{seed} {kind}")  # noqa: S311 - reproducible, no secret
        self.characters_per_token = characters_per_token

    def excerpt(self, tokens: int) -> str:
        """About `tokens` tokens of fresh text."""
        return self._text.take(max(MIN_EXCERPT_CHARACTERS, round(tokens * self.characters_per_token)))

    def one(self, tokens: int, output_tokens: int) -> tuple[Message, ...]:
        """A conversation of one user message of about `tokens` tokens that asks for a long enough answer."""
        task = self._task(max(50, output_tokens))
        text = self.excerpt(tokens - round(len(task) / self.characters_per_token))
        return ({"role": "user", "content": f"{text}\n\n{task}"},)

    def _task(self, words: int) -> str:
        match self.kind:
            case PromptKind.PROSE:
                return f"Continue the text above in the same voice, at least {words} words."
            case PromptKind.CODE:
                return "Continue the Python module above. Code only."
            case PromptKind.STRUCTURED:
                return (
                    "Turn every sentence above into one row of a Markdown table: topic, statement, condition."
                )
            case PromptKind.JSON:
                return (
                    'Give each sentence above as an object {"topic": ..., "claims": [...]} of a JSON array.'
                )
            case PromptKind.COUNTING:
                start = self._chance.randrange(1000, 90000)
                return (
                    f"Leave the text above aside. Count from {start} to {start + words}, one number a line."
                )
            case PromptKind.REASONING:
                letter = self._chance.choice("bcdfghklmpvw")
                return (
                    f"How many words above begin with the letter {letter}? Go sentence by sentence, "
                    "reason step by step and check the sum."
                )
            case PromptKind.DOCUMENT:
                return "Explain what the files above do, one after the other."
            case PromptKind.FILLER | PromptKind.UNSTATED:
                raise ValueError(f"{self.kind} is a kind of imported tables; sparkyard does not send it")
            case _:
                assert_never(self.kind)

    def needle(self, tokens: int, depth: float) -> Needle:
        """A long text with one fact at `depth` (0 = begin, 1 = end) and the question for it."""
        depot = self._chance.choice(DEPOTS)
        code = f"{self._chance.randrange(10000, 99999)}-{self._chance.choice('HKMPRT')}"
        text = self.excerpt(tokens)
        place = text.rfind("\n", 0, max(1, int(len(text) * depth))) + 1
        fact = f"The gate code of the {depot} depot is {code}.\n"
        question = f"\n\nWhat is the gate code of the {depot} depot? Answer with the code alone."
        return Needle(({"role": "user", "content": text[:place] + fact + text[place:] + question},), code)

    def agent_turn(self, tokens: int) -> Message:
        """What a tool gives back to an agent, asking for the next short call."""
        result = self.excerpt(tokens)
        return {
            "role": "user",
            "content": f"Tool result:\n{result}\n\n"
            'Reply with the next call as JSON: {"tool": ..., "path": ...}',
        }


def body(
    messages: Sequence[Message],
    *,
    model: str,
    endpoint: str,
    output_tokens: int,
    temperature: float,
    ignore_eos: bool,
) -> dict[str, Any]:
    """A streaming request of the OpenAI API; `ignore_eos` is understood by SGLang and vLLM."""
    common: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": output_tokens,
        "temperature": temperature,
    }
    if ignore_eos:
        common["ignore_eos"] = True
    if endpoint == "chat":
        return {**common, "messages": list(messages)}
    return {**common, "prompt": "\n\n".join(message["content"] for message in messages)}
