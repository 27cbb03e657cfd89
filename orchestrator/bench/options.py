"""What a run measures and how often. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from orchestrator.bench.figures import MIN_ROUNDS
from orchestrator.bench.record import PromptKind, Slo
from orchestrator.model.frozen import Frozen

Streams = tuple[int, ...]
MAX_STREAMS = 256
PREFILL_LADDER_TOKENS = (4_096, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_000_000)
PREFILL_FALLBACK_SHARES = (0.25, 0.5, 0.9)  # of the context limit, where it is below the ladder's first step
CONTEXT_MARGIN = 0.95  # prompts are sized by characters and come out some percent long


class Options(Frozen):
    """Every choice of a run; the record repeats those that matter for comparing."""

    kinds: tuple[PromptKind, ...] = (
        PromptKind.PROSE,
        PromptKind.CODE,
        PromptKind.STRUCTURED,
        PromptKind.JSON,
        PromptKind.COUNTING,
        PromptKind.REASONING,
    )
    streams: Streams = (1, 2, 4, 8, 16)
    """Numbers of streams for the first kind."""
    other_streams: Streams = (1, 2, 4, 8, 16)
    """Numbers of streams for the other kinds."""
    rounds: int = Field(default=3, ge=1, le=100)
    warm_up_rounds: int = Field(default=1, ge=0, le=20)
    requests_per_stream: int = Field(default=1, ge=1, le=1000)
    prompt_tokens: int = Field(default=512, ge=16)
    output_tokens: int = Field(default=256, ge=2)
    prefill_tokens: tuple[int, ...] = ()
    """Prompt lengths of the cold prefill; empty: the ladder as far as the deployment's context goes."""
    prefill_kind: PromptKind = PromptKind.DOCUMENT
    needle_tokens: int | None = None
    """Length of the needle's text; None: the longest prefill length; 0: no needle."""
    needle_depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    chat_behind_tokens: int | None = None
    """Length of the prefill that a chat arrives behind; None: the longest prefill length; 0: none."""
    agent_turns: int = Field(default=8, ge=0, le=1000)
    """0: no agent chain."""
    agent_turn_tokens: int = Field(default=1024, ge=16)
    agent_reply_tokens: int = Field(default=48, ge=2)
    slo: Slo | None = Slo()
    """None: no search for the capacity."""
    capacity_streams: int = Field(default=64, ge=1, le=MAX_STREAMS)
    """The search goes no further."""
    seed: int = 0
    endpoint: Literal["chat", "completions"] = "chat"
    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    ignore_eos: bool = True
    """Answers run to `output_tokens`, so that rounds are equal."""
    request_timeout_s: float = Field(default=3600.0, gt=0)
    """Without a byte for so long a request has failed: a cold prefill of a million tokens takes minutes."""
    sample_interval_s: float = Field(default=15.0, ge=1.0)
    """Between looks at the nodes: asking the GPU every 2 s costs 0.6 ms a decode step on GB10."""

    @model_validator(mode="after")
    def _sound(self) -> Options:
        for name in ("streams", "other_streams"):
            values: Streams = getattr(self, name)
            if not values or min(values) < 1 or max(values) > MAX_STREAMS:
                raise ValueError(f"{name}: each must be 1 to {MAX_STREAMS}, got {values}")
        unsendable = [kind for kind in (*self.kinds, self.prefill_kind) if kind in UNSENDABLE]
        if unsendable or not self.kinds:
            raise ValueError(f"kinds: {', '.join(unsendable) or 'none'} cannot be sent")
        if any(not 0.0 <= depth <= 1.0 for depth in self.needle_depths):
            raise ValueError("needle_depths: each must be 0 to 1")
        return self

    def lengths(self, context_limit_tokens: int | None) -> tuple[int, ...]:
        """Prefill lengths that this deployment can take, shortest first."""
        if self.prefill_tokens:
            return tuple(sorted(self.prefill_tokens))
        if context_limit_tokens is None:
            return PREFILL_LADDER_TOKENS[:1]
        fits = tuple(
            length for length in PREFILL_LADDER_TOKENS if length <= context_limit_tokens * CONTEXT_MARGIN
        )
        return fits or tuple(int(context_limit_tokens * share) for share in PREFILL_FALLBACK_SHARES)


UNSENDABLE = frozenset({PromptKind.FILLER, PromptKind.UNSTATED})


def quick() -> Options:
    """Every measurement at small sizes, for the lab: two minutes at 10 tokens/s a stream and 250 of prefill."""
    return Options(
        other_streams=(1,),
        rounds=MIN_ROUNDS,
        prompt_tokens=32,
        output_tokens=8,
        prefill_tokens=(128, 512),
        needle_tokens=128,
        chat_behind_tokens=256,
        agent_turns=3,
        agent_turn_tokens=32,
        agent_reply_tokens=8,
        capacity_streams=16,
        request_timeout_s=120.0,
        sample_interval_s=5.0,
    )
