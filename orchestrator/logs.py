"""`logs`: engine logs of one rank or of all, in the order of their times, each line with its rank."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.each import look
from orchestrator.errors import ConfigError, Exit
from orchestrator.model.event import Said
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Message, Progressed, Reply
from orchestrator.run import World
from orchestrator.verbs import Answer, Session

LOGS_TIMEOUT_S = 30.0
FOLLOW_TIMEOUT_S = 7 * 86400.0
LINES_DEFAULT = 40
LINES_MAX = 5000
"""What an agent gives at most; without `--lines`, everything since a time."""
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"^(\d{1,9})([smhd])$")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show. `ago_s` counts back on each node's own clock; `since_unix_s` is a moment; neither: no bound."""

    rank: int | None = None
    lines: int = LINES_DEFAULT
    follow: bool = False
    ago_s: float | None = None
    since_unix_s: float | None = None

    def since(self, now_unix_s: float) -> float | None:
        """The first moment that is wanted, on a node whose clock shows `now_unix_s`."""
        return self.since_unix_s if self.ago_s is None else now_unix_s - self.ago_s


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a rank. `at_unix_s` is None before the log's first time stamp."""

    rank: int
    at_unix_s: float | None
    text: str

    def shown(self) -> str:
        """With its rank."""
        return f"rank {self.rank} │ {self.text}"


def wanted(rank: int | None, lines: int | None, *, follow: bool, since: str | None) -> Wanted:
    """From the options. `since`: `90s`, `10m`, `2h`, `1d`, or a time as `2026-11-29 20:15`, local unless it says else.

    ConfigError when it is neither.
    """
    most = lines or (LINES_DEFAULT if since is None else LINES_MAX)
    if since is None:
        return Wanted(rank, most, follow)
    if match := _AGO.match(since):
        return Wanted(rank, most, follow, ago_s=float(int(match[1]) * UNITS_S[match[2]]))
    try:
        moment = datetime.fromisoformat(since)
        return Wanted(rank, most, follow, since_unix_s=moment.timestamp())
    except (ValueError, OverflowError, OSError):
        example = (datetime.now().astimezone() - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M")
        text = f"--since: {since!r} is neither a span (90s, 10m, 2h, 1d) nor a time ({example})"
        raise ConfigError([text]) from None


async def logs(session: Session, asked: Wanted, write: Callable[[str], None]) -> Answer:
    """The newest start on each node. What is there is merged by time; what `follow` brings comes as it is written."""
    session.listen_for_interrupt()
    name = session.profile.name
    async with session.world() as world:
        facts, missing = await look(world.nodes, world.look_args())
        ranks = newest_ranks(facts, name, asked.rank)
        failures = list(missing)
        first: list[Line] = []
        waiting = len(ranks)

        def begin(lines: list[Line]) -> None:
            """The first answer of each rank is held until all have given theirs."""
            nonlocal waiting
            first.extend(lines)
            waiting -= 1
            if waiting == 0:
                for line in merged(first):
                    write(line.shown())

        async def one(node: str, number: int, generation: int) -> None:
            began = False
            async for message in _messages(world, facts, asked, name, (node, number, generation)):
                match message:
                    case Progressed(data=data) | Reply(value=data, failure=None):
                        lines = _lines(number, data)
                        if began:
                            for line in lines:
                                write(line.shown())
                        else:
                            began = True
                            begin(lines)
                    case Reply(failure=Failure() as failure):
                        failures.append(failure)
            if not began:
                begin([])

        work = asyncio.gather(*(one(*entry) for entry in ranks))
        while not work.done() and not session.interrupted:
            await asyncio.wait({work}, timeout=0.2)
        work.cancel()
        await asyncio.wait({work})
    if not facts:
        return Answer({}, Exit.UNDETERMINED)
    if not ranks:
        which = "no rank" if asked.rank is None else f"no rank {asked.rank}"
        failures.append(Failure("all", "failed", f"{which} of {name} was ever started here", "sparkyard up"))
    for failure in failures:
        session.emit(Said("warning", f"{failure.node}: {failure.message}"))
    return Answer({}, Exit.FAILED if failures else Exit.FINE)


def _messages(
    world: World, facts: ClusterFacts, asked: Wanted, name: str, entry: tuple[str, int, int]
) -> AsyncIterator[Message]:
    node, number, generation = entry
    args = {
        "deployment": name,
        "generation": generation,
        "rank": number,
        "lines": asked.lines,
        "follow": asked.follow,
        "since_unix_s": asked.since(facts[node].now_unix_s),
    }
    bound_s = FOLLOW_TIMEOUT_S if asked.follow else LOGS_TIMEOUT_S
    return world.nodes[node].ask(Ask("logs", args), timeout_s=bound_s)


def _lines(rank: int, data: dict[str, object]) -> list[Line]:
    texts, stamps = data.get("lines"), data.get("times")
    if not isinstance(texts, list):
        return []
    known = stamps if isinstance(stamps, list) and len(stamps) == len(texts) else [None] * len(texts)
    return [
        Line(rank, at if isinstance(at, int | float) else None, str(text))
        for text, at in zip(texts, known, strict=True)
    ]


def merged(lines: Iterable[Line]) -> list[Line]:
    """By time; lines of one second by rank, each rank's own order kept. Undated ones come first, by rank."""
    return sorted(lines, key=lambda line: (line.at_unix_s or 0.0, line.rank))


def newest_ranks(facts: ClusterFacts, deployment: str, rank: int | None) -> list[tuple[str, int, int]]:
    """Node, rank and generation of the newest start of each rank that is wanted."""
    newest: dict[int, tuple[str, int, int]] = {}
    for here in facts.values():
        for found in here.ranks:
            if found.deployment == deployment and rank in {None, found.rank}:
                entry = (here.node, found.rank, found.generation)
                newest[found.rank] = max(newest.get(found.rank, entry), entry, key=lambda item: item[2])
    return [newest[number] for number in sorted(newest)]
