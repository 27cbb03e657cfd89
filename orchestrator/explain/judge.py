"""From lines to causes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.explain.rules import RULES, SAME, Level, Rule

LINES_SHOWN = 4
LINE_MAX = 400
_RANK = re.compile(r"(?:^|[/_.-])(?:rank|r|TP)[-_]?(\d{1,2})(?=[/_.-]|$)", re.IGNORECASE)
_JOINED = re.compile(r"Gated launch|Init torch distributed ends|joined the group")
_CLIENTS = re.compile(r"(\d+)/(\d+) clients joined")
_ORDER: dict[Level, int] = {"cause": 0, "slow path": 1, "consequence": 2}

Logs = Mapping[str, Sequence[str]]
"""Lines by file, as named in the folder."""


@dataclass(frozen=True, slots=True)
class Line:
    """Where something stands."""

    file: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause with the lines that show it."""

    id: str
    title: str
    level: Level
    ranks: tuple[int, ...]
    remedy: str
    lines: tuple[Line, ...]
    note: str = ""


def rank_of(file: str) -> int | None:
    """The rank that a file belongs to, by its name."""
    found = _RANK.search(file)
    return int(found[1]) if found else None


def explain(logs: Logs) -> tuple[Cause, ...]:
    """The likely causes, the first of them the headline."""
    found = [*_different(logs), *(cause for rule in RULES if (cause := _match(rule, logs)) is not None)]
    order = {rule.id: place for place, rule in enumerate(RULES)}
    found.sort(key=lambda cause: (_ORDER[cause.level], order.get(cause.id, -1)))
    return tuple(_special(found))


def _special(causes: list[Cause]) -> list[Cause]:
    """Of several rules for one line, only the one that says most."""
    kept: list[Cause] = []
    told: set[tuple[str, int]] = set()
    for cause in causes:
        places = {(line.file, line.number) for line in cause.lines}
        if places <= told:
            continue
        told |= places
        kept.append(cause)
    return kept


def _match(rule: Rule, logs: Logs) -> Cause | None:
    lines = _lines(rule.patterns, logs)
    if rule.unless:
        other = set(_ranks(_lines(rule.unless, logs)))
        lines = [line for line in lines if rank_of(line.file) not in other]
    if not lines or (rule.beside and not _lines(rule.beside, logs)):
        return None
    shown = lines[:LINES_SHOWN] + (_lines(rule.beside, logs)[:1] if rule.beside else [])
    note = _missing(logs, lines) if rule.id == "init_hang" else ""
    return Cause(rule.id, rule.title, rule.level, _ranks(lines), rule.remedy, tuple(shown), note)


def _lines(patterns: Sequence[re.Pattern[str]], logs: Logs) -> list[Line]:
    found: dict[tuple[str, int], Line] = {}
    for file in sorted(logs):
        whole = "\n".join(logs[file])
        for pattern in patterns:
            # a text that is nowhere in the file is looked for once, not once a line
            if pattern.search(whole):
                for number, text in enumerate(logs[file], 1):
                    if pattern.search(text):
                        found[file, number] = Line(file, number, text[:LINE_MAX])
    return sorted(found.values(), key=lambda line: (line.file, line.number))


def _ranks(lines: Sequence[Line]) -> tuple[int, ...]:
    return tuple(sorted({rank for line in lines if (rank := rank_of(line.file)) is not None}))


def _missing(logs: Logs, lines: Sequence[Line]) -> str:
    """Who is not there: a rank without a log, or one whose log never says that it joined."""
    ranks = {rank for file in logs if (rank := rank_of(file)) is not None}
    joined = {
        rank
        for file, texts in logs.items()
        if (rank := rank_of(file)) is not None and any(_JOINED.search(text) for text in texts)
    }
    counted = [_CLIENTS.search(line.text) for line in lines]
    size = max((int(found[2]) for found in counted if found), default=0)
    # torch counts rank 0 among its clients; the ranks are numbered from 0
    silent = sorted(set(range(size)) - ranks) if size > len(ranks) else []
    words = []
    if silent:
        words.append("no log of rank " + ", ".join(map(str, silent)))
    if joined and (late := sorted(ranks - joined)):
        words.append("never joined: rank " + ", ".join(map(str, late)))
    return "; ".join(words)


def _different(logs: Logs) -> list[Cause]:
    found = []
    for rule in SAME:
        seen: dict[str, Line] = {}
        for file in sorted(logs):
            for number, text in enumerate(logs[file], 1):
                if match := rule.pattern.search(text):
                    seen.setdefault(match[1], Line(file, number, text[:LINE_MAX]))
        ranks = _ranks(list(seen.values()))
        if len(seen) > 1 and len(ranks) > 1:
            lines = tuple(seen.values())[:LINES_SHOWN]
            found.append(
                Cause(rule.id, rule.title, "cause", ranks, rule.remedy, lines, "found: " + ", ".join(seen))
            )
    return found


def report(causes: Sequence[Cause], source: str, logs: Logs) -> dict[str, Any]:
    """`sparkyard/explain/v1`."""
    return {
        "schema": "sparkyard/explain/v1",
        "source": source,
        "read": {"files": len(logs), "lines": sum(len(lines) for lines in logs.values())},
        "causes": [
            {
                "cause": cause.id,
                "title": cause.title,
                "level": cause.level,
                "ranks": list(cause.ranks),
                "note": cause.note,
                "remedy": cause.remedy,
                "lines": [
                    {"file": line.file, "line": line.number, "text": line.text} for line in cause.lines
                ],
            }
            for cause in causes
        ],
    }
