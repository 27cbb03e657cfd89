"""`top`: attaches to the monitor of this cluster, or watches by itself, or replays a file."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from orchestrator import verbs
from orchestrator.errors import Exit, SparkyardError
from orchestrator.examination import diagnose
from orchestrator.model.event import Said
from orchestrator.model.finding import Finding
from orchestrator.model.sample import FindingsSeen
from orchestrator.remote.node import Ask, reply
from orchestrator.remote.nodes import nodes
from orchestrator.verbs import Answer, Session
from orchestrator.view.headline import ranks
from orchestrator.view.state import State, empty, worst_first
from orchestrator.view.tui.app import Top
from orchestrator.view.tui.source import Controls, Source, Verb
from orchestrator.watch.feed import Feed
from orchestrator.watch.local import SocketError, attach, socket_path
from orchestrator.watch.replay import Replay, read
from orchestrator.watch.samples import Pace, watch

LOG_LINES = 400
LOG_TIMEOUT_S = 20.0


@dataclass
class Live:
    """The state of a feed, as a source of the dashboard."""

    feed: Feed
    where: str

    def look(self) -> tuple[State, float]:
        """See `Source`."""
        return self.feed.source()

    def about(self) -> str:
        """See `Source`."""
        return self.where


async def top(session: Session, folder: Path, pace: Pace) -> Answer:
    """The dashboard over the cluster, until `q`. `folder` holds the monitor's socket, if one runs."""
    feed = Feed(empty(session.profile, session.cluster), time.time)
    live = Live(feed, "live")
    asked = nodes(session.cluster)
    path = socket_path(folder)

    async def follow() -> None:
        if path.exists():
            live.where = "monitor"
            try:
                await attach(path, feed)
            except SocketError as error:
                feed.put(Said("warning", f"{error}; watching by ourselves"))
        live.where = "live"
        await watch(asked, feed.put, pace)

    following = asyncio.create_task(follow())
    try:
        await _show(live, _controls(session, feed))
    finally:
        following.cancel()
        await asyncio.wait({following})
        await asyncio.gather(*(node.close() for node in asked.values()))
    return Answer({}, Exit.FINE)


async def replay(file: Path, speed: float, session: Session | None) -> Answer:
    """The dashboard over a file. ConfigError when the file has no event."""
    lines, skipped = read(file)
    begin = empty(session.profile, session.cluster) if session is not None else None
    source = Replay(lines, begin, speed=speed, zone=_zone())
    if skipped:
        sys.stderr.write(f"{file}: {skipped} lines are not events and are left out\n")
    await _show(source, None)
    return Answer({}, Exit.FINE)


async def _show(source: Source, controls: Controls | None) -> None:
    if not sys.stdout.isatty():
        raise SparkyardError("top needs a terminal; `status --json` and `monitor` are for programs")
    await Top(source, controls, zone=_zone()).run_async()


def _zone() -> tzinfo:
    return datetime.now().astimezone().tzinfo or UTC


def _controls(session: Session, feed: Feed) -> Controls:
    """What the keys order; each opens its own connections, as the verbs of the command line do."""
    asked = nodes(session.cluster)
    quiet = Session(session.profile, session.cluster, feed.put)

    async def logs(name: str) -> list[str]:
        found = [rank.now for node, rank in ranks(feed.state) if node.name == name]
        if not found:
            return [f"no rank of {session.profile.name} was ever started on {name}"]
        newest = found[-1]
        args = {
            "deployment": newest.deployment,
            "generation": newest.generation,
            "rank": newest.rank,
            "lines": LOG_LINES,
        }
        answer = await reply(asked[name], Ask("logs", args), timeout_s=LOG_TIMEOUT_S)
        await asked[name].close()
        return [answer.failure.message] if answer.failure else [str(line) for line in answer.value["lines"]]

    async def plan(verb: Verb) -> list[str]:
        try:
            answer = await verbs.planned(quiet, verb)
        except SparkyardError as error:
            return [str(error)]
        return plan_lines(answer.data)

    async def perform(verb: Verb) -> list[str]:
        try:
            answer = await verbs.converging(quiet, verb)
        except SparkyardError as error:
            return [str(error)]
        failures = [f"{failure['node']}: {failure['message']}" for failure in answer.data.get("failures", [])]
        return [*failures, f"{verb} ends with {int(answer.exit_code)}"]

    async def doctor() -> list[str]:
        goal, _ = quiet.goal()
        async with quiet.world() as world:
            found = (await diagnose(world, goal)).findings
        feed.put(FindingsSeen(found))
        return [line for finding in worst_first(found) for line in finding_lines(finding)] or [
            "nothing found"
        ]

    return Controls(logs, doctor, plan, perform)


def plan_lines(plan: dict[str, object]) -> list[str]:
    """A plan (`sparkyard/plan/v1`) as plain lines."""
    lines: list[str] = []
    stages = plan.get("stages")
    for number, stage in enumerate(stages if isinstance(stages, list) else [], 1):
        lines.append(f"{number}. {stage['title']}")
        lines += [f"   {step['node']}: {step['action']} ({step['why']})" for step in stage["steps"]]
        lines += [f"   {wait['node']}: wait until {wait['until']}" for wait in stage["waits"]]
    blocked = plan.get("blocked")
    lines += [
        f"blocked: {failure['node']}: {failure['message']}"
        for failure in (blocked if isinstance(blocked, list) else [])
    ]
    return lines or ["nothing to do"]


def finding_lines(finding: Finding) -> list[str]:
    """A finding as plain lines: what, expected, remedy."""
    place = f"{finding.node} {finding.link}".strip() or "cluster"
    lines = [f"{finding.severity.value:<8}{place}: {finding.measured} [{finding.check}]"]
    if finding.expected:
        lines.append(f"        expected: {finding.expected}")
    if finding.remedy:
        lines.append(f"        remedy: {finding.remedy}")
    return lines
