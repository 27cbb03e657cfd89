"""The measurements: decode, cold and warm prefill, needle, a chat behind a long prefill, an agent chain."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.bench.cell import Cell, Conversation
from orchestrator.bench.figures import decode_round, prefill_round, quantile, ttft_s
from orchestrator.bench.loadgen.stream import Sample
from orchestrator.bench.options import CONTEXT_MARGIN, Options
from orchestrator.bench.progress import BenchEvent, Remarked, RoundEnded, Ticked
from orchestrator.bench.prompts import TYPICAL_CHARACTERS_PER_TOKEN, Prompts, body, pool_of
from orchestrator.bench.record import Cache, Measure, PromptKind, Row
from orchestrator.bench.source import LoadPlan, LoadResult, LoadSource, StreamPlan
from orchestrator.bench.texts import Pool, Reservoir
from orchestrator.errors import SparkyardError

PROBE_CHARACTERS = 2_000
MIN_PROBE_TOKENS = 8
STALL_LEAD = 1.5  # the running stream must be past its own prefill before the long one begins
CHAT_DELAY_SHARE = 0.2  # the chat comes in when a fifth of the long prefill is done
GUESSED_PREFILL_S = 1.0


@dataclass(slots=True)
class Scenarios:
    """Measures rows of one endpoint through one load source. `open_cell` survives an interruption."""

    source: LoadSource
    base_url: str
    model: str
    options: Options
    context_limit_tokens: int | None
    emit: Callable[[BenchEvent], None]
    headers: dict[str, str] = field(default_factory=dict)
    open_cell: Cell | None = None
    _texts: dict[Pool, Reservoir] = field(default_factory=dict)
    _prompts: dict[PromptKind, Prompts] = field(default_factory=dict)
    _prefill_s: float = GUESSED_PREFILL_S

    async def prompts(self, kind: PromptKind) -> Prompts:
        """Prompts of that kind, sized by one counted request.

        Raises:
            SparkyardError: the endpoint refuses the request.
        """
        if kind in self._prompts:
            return self._prompts[kind]
        pool = pool_of(kind)
        text = self._texts.setdefault(pool, Reservoir(pool, f"{self.options.seed} {pool}"))
        prompts = Prompts(kind, text, self.options.seed)
        characters = min(PROBE_CHARACTERS, (self.context_limit_tokens or PROBE_CHARACTERS) // 2)
        conversation = prompts.one(round(characters / TYPICAL_CHARACTERS_PER_TOKEN), 2)
        sample = (await self._send([[conversation]], 2)).samples[0]
        if sample.error:
            raise SparkyardError(f"bench: {self.base_url} refuses a first short request: {sample.error}")
        if sample.prompt_tokens >= MIN_PROBE_TOKENS:
            prompts.characters_per_token = len(conversation[0]["content"]) / sample.prompt_tokens
        self._prompts[kind] = prompts
        return prompts

    async def decode(self, kind: PromptKind, streams: int) -> Row | None:
        """All streams at once, fresh prompts, equal lengths of answer."""
        options = self.options
        prompts = await self.prompts(kind)
        cell = self._open(Measure.DECODE, kind, streams, Cache.COLD, options.output_tokens)
        cell.begin(options.prompt_tokens, options.rounds)
        for number in range(-options.warm_up_rounds, options.rounds):
            plan = [
                [
                    prompts.one(options.prompt_tokens, options.output_tokens)
                    for _ in range(options.requests_per_stream)
                ]
                for _ in range(streams)
            ]
            result = await self._send(plan, options.output_tokens)
            if number < 0:
                self.emit(RoundEnded(0, decode_round(result.samples), _errors(result)))
            else:
                cell.add(decode_round(result.samples), [result], [one for stream in plan for one in stream])
        return self._close(cell)

    async def prefill(self, tokens: int) -> list[Row]:
        """One fresh prompt of about `tokens` tokens a round, then the same prompt again: a cold and a warm
        row."""
        options = self.options
        if not self._fits(tokens):
            return []
        prompts = await self.prompts(options.prefill_kind)
        cold = self._open(Measure.PREFILL, options.prefill_kind, 1, Cache.COLD, 1)
        warm = Cell(Measure.PREFILL, options.prefill_kind, 1, Cache.WARM, 1, self.emit)
        cold.begin(tokens, options.rounds)
        for _ in range(options.rounds):
            conversation = prompts.one(tokens, 1)
            result = await self._send([[conversation]], 1)
            cold.add(prefill_round(result.samples), [result], [conversation])
            again = await self._send([[conversation]], 1)
            warm.add(prefill_round(again.samples), [again], [conversation])
            if not _errors(result):
                self._prefill_s = ttft_s(result.samples[0])
        rows = [self._close(cold), warm.row()]
        return [row for row in rows if row is not None]

    async def needle(self, tokens: int) -> Row | None:
        """A fact at several depths of a long text; the figure is the share of answers that hold it."""
        options = self.options
        if not self._fits(tokens + options.agent_reply_tokens):
            return None
        prompts = await self.prompts(options.prefill_kind)
        cell = self._open(Measure.NEEDLE, options.prefill_kind, 1, Cache.COLD, options.agent_reply_tokens)
        cell.begin(tokens, options.rounds)
        for _ in range(options.rounds):
            needles = [prompts.needle(tokens, depth) for depth in options.needle_depths]
            # one plan each: a plan with several texts of a million tokens is over the agent's line limit
            results = [
                await self._send([[needle.messages]], options.agent_reply_tokens) for needle in needles
            ]
            found = [
                needle.answer in result.samples[0].text
                for needle, result in zip(needles, results, strict=True)
            ]
            figures = prefill_round(results[0].samples) | {"found": sum(found) / len(found)}
            cell.add(figures, results, [needle.messages for needle in needles])
        return self._close(cell)

    async def chat_behind_prefill(self, tokens: int) -> Row | None:
        """A short chat alone, then the same size of chat behind a long prefill, beside a stream that is
        decoding."""
        options = self.options
        if not self._fits(tokens):
            return None
        chats, longs = await self.prompts(PromptKind.PROSE), await self.prompts(options.prefill_kind)
        cell = self._open(
            Measure.CHAT_BEHIND_PREFILL, options.prefill_kind, 3, Cache.COLD, options.output_tokens
        )
        cell.begin(tokens, options.rounds)
        for _ in range(options.rounds):
            alone, running, chat = (chats.one(options.prompt_tokens, options.output_tokens) for _ in range(3))
            long = longs.one(tokens, 1)
            before = await self._send([[alone]], options.output_tokens)
            if _errors(before):
                cell.add({}, [before], [alone])
                continue
            alone_s = ttft_s(before.samples[0])
            begin_s = alone_s * STALL_LEAD
            during = await self._send(
                [[running], [long], [chat]],
                options.output_tokens,
                delays_s=(0.0, begin_s, begin_s + CHAT_DELAY_SHARE * self._prefill_s),
            )
            cell.add(_interference(alone_s, during.samples), [before, during], [alone, running, long, chat])
        return self._close(cell)

    async def agent_chain(self) -> Row | None:
        """A conversation that grows by tool results and short replies; every turn resends all of it."""
        options = self.options
        needed = options.agent_turns * (options.agent_turn_tokens + options.agent_reply_tokens)
        if not self._fits(needed):
            return None
        prompts = await self.prompts(PromptKind.CODE)
        cell = self._open(Measure.AGENT_CHAIN, PromptKind.CODE, 1, Cache.WARM, options.agent_reply_tokens)
        cell.begin(needed, options.rounds)
        for _ in range(options.rounds):
            chain: list[dict[str, str]] = []
            results: list[LoadResult] = []
            for _turn in range(options.agent_turns):
                chain.append(prompts.agent_turn(options.agent_turn_tokens))
                results.append(await self._send([[tuple(chain)]], options.agent_reply_tokens))
                chain.append({"role": "assistant", "content": results[-1].samples[0].text})
            cell.add(_chain([result.samples[0] for result in results]), results, [tuple(chain)])
        return self._close(cell)

    def _open(
        self, measure: Measure, kind: PromptKind, streams: int, cache: Cache, output_tokens: int
    ) -> Cell:
        self.open_cell = Cell(measure, kind, streams, cache, output_tokens, self.emit)
        return self.open_cell

    def _close(self, cell: Cell) -> Row | None:
        self.open_cell = None
        return cell.row()

    def _fits(self, tokens: int) -> bool:
        limit = self.context_limit_tokens
        if limit is None or tokens <= limit * CONTEXT_MARGIN:
            return True
        self.emit(Remarked(f"{tokens} tokens do not fit the context limit of {limit}: left out"))
        return False

    async def _send(
        self,
        conversations: Sequence[Sequence[Conversation]],
        output_tokens: int,
        delays_s: Sequence[float] | None = None,
    ) -> LoadResult:
        options = self.options
        delays_s = delays_s or [0.0] * len(conversations)
        path = "/v1/chat/completions" if options.endpoint == "chat" else "/v1/completions"
        streams = tuple(
            StreamPlan(
                tuple(
                    body(
                        conversation,
                        model=self.model,
                        endpoint=options.endpoint,
                        output_tokens=output_tokens,
                        temperature=options.temperature,
                        ignore_eos=options.ignore_eos,
                    )
                    for conversation in stream
                ),
                delay_s,
            )
            for stream, delay_s in zip(conversations, delays_s, strict=True)
        )
        plan = LoadPlan(f"{self.base_url}{path}", streams, options.request_timeout_s, self.headers)
        return await self.source.run(plan, lambda seen, at_s: self.emit(Ticked(sum(seen), at_s)))


def _errors(result: LoadResult) -> int:
    return sum(bool(sample.error) for sample in result.samples)


def _interference(alone_s: float, samples: Sequence[Sample]) -> dict[str, float]:
    running, long, chat = samples
    if running.error or long.error or chat.error:
        return {}
    begin_s, end_s = long.start_s, long.token_times_s[0]
    times = running.token_times_s
    stalls = [
        later - earlier for earlier, later in itertools.pairwise(times) if later > begin_s and earlier < end_s
    ]
    figures = {"ttft_alone_ms": alone_s * 1e3, "ttft_behind_ms": ttft_s(chat) * 1e3}
    if stalls:
        figures["stall_ms"] = max(stalls) * 1e3
    return figures


def _chain(samples: Sequence[Sample]) -> dict[str, float]:
    if any(sample.error for sample in samples):
        return {}
    later = samples[1:] or samples
    figures = {
        "ttft_p50_ms": quantile((ttft_s(sample) for sample in later), 0.5) * 1e3,
        "ttft_last_turn_ms": ttft_s(samples[-1]) * 1e3,
        "e2e_p50_ms": quantile((sample.end_s - sample.start_s for sample in later), 0.5) * 1e3,
    }
    if all(sample.cached_tokens is not None for sample in later):
        cached = sum(sample.cached_tokens or 0 for sample in later)
        figures["cached_share"] = cached / sum(sample.prompt_tokens for sample in later)
    return figures
