"""Requests as rank 0 counts them, and the Engram reader of each rank. Pure."""

from __future__ import annotations

from rich.text import Text

from orchestrator.view.headline import SKEW_HIGH, ranks, skews
from orchestrator.view.state import State
from orchestrator.view.tui.styles import BAD, DIM, WARN
from orchestrator.view.tui.table import Cell, Column, clipped, draw
from orchestrator.view.tui.words import bar, count, number, percent, seconds, span, spark

PAGE_OLD_S = 30.0
"""The page is read every 5 s; older than this, its numbers are not shown as if they were news."""


def requests(state: State, now_unix_s: float, width: int, height: int) -> Text:
    """What rank 0 says of its requests."""
    del height
    engine = state.engine
    if engine is None:
        return Text("rank 0's metrics page has not been read", style=DIM)
    age_s = now_unix_s - engine.at_unix_s
    if engine.now.error or age_s > PAGE_OLD_S:
        return Text(clipped(engine.now.error or f"last read {span(age_s)} ago", width), style=WARN)
    wide = max(6, min(40, width - 24))
    running, queued = engine.gauge("num_running_reqs"), engine.gauge("num_queue_reqs")
    accept, hits = engine.gauge("spec_accept_length"), engine.gauge("cache_hit_rate")
    canary = state.canary
    lines = [
        f"tokens/s   {number(engine.generated_per_s, 1):>7}  {spark(engine.history, wide)}",
        f"prompt/s   {count(engine.prompt_per_s):>7}  {number(engine.requests_per_s, 2)} requests/s",
        f"running    {count(running):>7}  queued {count(queued)}",
        f"first token {seconds(engine.ttft_p50_s):>6}  p95 {seconds(engine.ttft_p95_s)}",
        f"KV use     {percent(engine.kv_use):>7}  {bar(engine.kv_use, wide)}",
        f"accepted   {number(accept or None, 2):>7}  tokens a step, prefix hits {percent(hits)}",
    ]
    if canary is not None:
        word = f"{canary.seconds:.2f} s" if canary.ok else f"FAILS ({canary.in_a_row})"
        lines.append(f"canary     {word:>7}  {span(now_unix_s - canary.at_unix_s)} ago")
    return Text("\n".join(clipped(line, width) for line in lines))


ENGRAM_COLUMNS = (
    Column("RANK", 4),
    Column("NODE", 10, 3),
    Column("ROWS/s", 7, 0, right=True),
    Column("p99", 8, 0, right=True),
    Column("MEAN", 8, 2, right=True),
    Column("HITS", 5, 1, right=True),
    Column("SKEW", 6, 1, right=True),
    Column("ERRORS", 6, 1, right=True),
)


def engram(state: State, now_unix_s: float, width: int, height: int) -> Text:
    """The Engram reader of each rank."""
    del height
    skewed = {(name, rank): ratio for name, rank, ratio in skews(state)}
    rows: list[list[Cell]] = []
    for node, rank in ranks(state):
        if rank.now.engram is None or not node.known(now_unix_s):
            continue
        ratio = skewed.get((node.name, rank.now.rank))
        errors = rank.now.engram.errors
        rows.append(
            [
                f"r{rank.now.rank}",
                node.name,
                count(rank.rows_per_s),
                seconds(rank.batch_p99_s),
                seconds(rank.batch_mean_s),
                percent(rank.hit_ratio),
                Text(number(ratio, 1, "×"), style=WARN if ratio is not None and ratio > SKEW_HIGH else ""),
                Text(count(errors), style=BAD if errors else ""),
            ]
        )
    return draw(ENGRAM_COLUMNS, rows, width) if rows else Text("no reader is open", style=DIM)
