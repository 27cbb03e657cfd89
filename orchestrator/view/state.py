"""`State = fold(events, samples)`: what every view draws. Pure; time comes in with each event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from orchestrator.model.cluster import Cluster
from orchestrator.model.event import (
    Looked,
    PredictionMissed,
    Progress,
    RunEnded,
    RunStarted,
    Said,
    StageStarted,
    StepDone,
    StepFailed,
    WaitDone,
)
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.profile import Profile
from orchestrator.model.sample import (
    BreakerMoved,
    CanaryAnswered,
    FindingsSeen,
    GangRestarted,
    Happened,
    NodeSampled,
    NodeSilent,
)
from orchestrator.view.engine import EngineView, engine_after
from orchestrator.view.node import NodeView, node_after, node_silent

LOG_MAX = 500
"""Lines of the event log that a view keeps; all of them are in events.jsonl."""
FINDINGS_MAX = 200


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the event log. `level` is `note`, `warning` or `error`."""

    at_unix_s: float
    level: str
    node: str
    text: str


@dataclass(frozen=True, slots=True)
class StepView:
    """A step or wait of the running stage; `total` 0 when unknown."""

    state: str
    done: int = 0
    total: int = 0
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunView:
    """The verb that runs, or ran last."""

    verb: str
    stage: str = ""
    steps: Mapping[tuple[str, str], StepView] = field(default_factory=dict)
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class CanaryView:
    """The last canary and how many failed since the watch began."""

    ok: bool
    seconds: float
    at_unix_s: float
    failures: int
    in_a_row: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that is known. `now_unix_s` is the time of the last event."""

    deployment: str
    tp: int
    topology: str
    nodes: Mapping[str, NodeView]
    now_unix_s: float = 0.0
    engine: EngineView | None = None
    canary: CanaryView | None = None
    restarts: int = 0
    breaker_open: bool = False
    breaker_why: str = ""
    findings: tuple[Finding, ...] = ()
    run: RunView | None = None
    log: tuple[LogLine, ...] = ()


def empty(profile: Profile, cluster: Cluster) -> State:
    """Before anything happened: the nodes are known, nothing of them is."""
    return State(
        profile.name,
        profile.parallel.tp,
        cluster.topology,
        {node.name: NodeView(node.name) for node in cluster.ranked},
    )


def unknown(deployment: str = "", topology: str = "switch") -> State:
    """For a replay without its cluster file: nodes appear as they are named."""
    return State(deployment, 0, topology, {})


def fold(state: State, happened: Happened, at_unix_s: float) -> State:
    """The state after one more event."""
    state = replace(state, now_unix_s=max(at_unix_s, state.now_unix_s))
    match happened:
        case NodeSampled(node=name, sample=sample):
            before = state.nodes.get(name) or NodeView(name)
            here = node_after(before, sample, at_unix_s, state.topology)
            state = _with_node(state, here)
            if sample.engine is not None:
                state = replace(
                    state, engine=engine_after(state.engine, sample.engine, sample.monotonic_s, at_unix_s)
                )
            if not state.deployment and sample.desired is not None:
                state = replace(state, deployment=sample.desired.deployment)
            return _log(state, at_unix_s, _news(before, here))
        case NodeSilent(node=name, failure=failure):
            before = state.nodes.get(name) or NodeView(name)
            state = _with_node(state, node_silent(before, failure))
            told = before.silent is not None and before.silent.message == failure.message
            return state if told else _log(state, at_unix_s, [("warning", name, failure.message)])
        case FindingsSeen(findings=findings):
            return replace(state, findings=findings[:FINDINGS_MAX])
        case CanaryAnswered():
            return _canary(state, happened, at_unix_s)
        case GangRestarted(generation=generation, why=why):
            line = ("error", "", f"restart as a whole, generation {generation}: {why}")
            return _log(replace(state, restarts=state.restarts + 1), at_unix_s, [line])
        case BreakerMoved(open=is_open, why=why):
            line = ("error", "", f"circuit breaker open, no more restarts: {why}") if is_open else (
                "note", "", "circuit breaker closed"
            )  # fmt: skip
            return _log(replace(state, breaker_open=is_open, breaker_why=why), at_unix_s, [line])
        case (
            RunStarted()
            | Looked()
            | StageStarted()
            | Progress()
            | StepDone()
            | StepFailed()
            | WaitDone()
            | PredictionMissed()
            | Said()
            | RunEnded()
        ):
            return _run(state, happened, at_unix_s)
        case _:
            assert_never(happened)


def fold_all(state: State, lines: Iterable[tuple[float, Happened]]) -> State:
    """`fold` over many."""
    for at_unix_s, happened in lines:
        state = fold(state, happened, at_unix_s)
    return state


def _with_node(state: State, node: NodeView) -> State:
    return replace(state, nodes={**state.nodes, node.name: node})


def _log(state: State, at_unix_s: float, lines: list[tuple[str, str, str]]) -> State:
    if not lines:
        return state
    new = tuple(LogLine(at_unix_s, level, node, text) for level, node, text in lines)
    return replace(state, log=(*state.log, *new)[-LOG_MAX:])


def _news(before: NodeView, after: NodeView) -> list[tuple[str, str, str]]:
    """What a sample says that is worth a line: a node that is back, a rank's new phase, a link's change."""
    lines: list[tuple[str, str, str]] = []
    if before.silent is not None:
        lines.append(("note", after.name, "answers again"))
    phases = {rank.key: rank.now.phase for rank in before.ranks}
    for rank in after.ranks:
        if rank.key in phases and phases[rank.key] != rank.now.phase:
            bad = rank.now.phase == "ended" and not rank.now.ended.startswith("stopped")
            text = f"rank {rank.now.rank}: {rank.now.ended if rank.now.phase == 'ended' else rank.now.phase}"
            lines.append(("error" if bad else "note", after.name, text))
    ups = {link.link.netdev: link.link.up for link in before.links}
    for link in after.links:
        was = ups.get(link.link.netdev)
        if was is not None and link.link.up is not None and was != link.link.up:
            word = "is up again" if link.link.up else f"went down ({link.link.state or 'no state'})"
            lines.append(("note" if link.link.up else "error", after.name, f"link {link.link.netdev} {word}"))
    return lines


def _canary(state: State, answer: CanaryAnswered, at_unix_s: float) -> State:
    last = state.canary
    failures = (last.failures if last else 0) + (not answer.ok)
    in_a_row = 0 if answer.ok else (last.in_a_row if last else 0) + 1
    view = CanaryView(answer.ok, answer.seconds, at_unix_s, failures, in_a_row, answer.why)
    state = replace(state, canary=view)
    if answer.ok and last is not None and not last.ok:
        return _log(state, at_unix_s, [("note", "", f"canary answers again after {answer.seconds:.1f} s")])
    return state if answer.ok else _log(state, at_unix_s, [("error", "", f"canary failed: {answer.why}")])


def _run(
    state: State,
    happened: (
        RunStarted
        | Looked
        | StageStarted
        | Progress
        | StepDone
        | StepFailed
        | WaitDone
        | PredictionMissed
        | Said
        | RunEnded
    ),
    at_unix_s: float,
) -> State:
    run = state.run or RunView("")
    line: tuple[str, str, str] | None = None
    match happened:
        case RunStarted(verb=verb, profile=profile):
            run, line = RunView(verb), ("note", "", f"{verb} begins")
            state = replace(state, deployment=state.deployment or profile)
        case Looked(failures=failures):
            run = replace(run, steps={})
            for failure in failures:
                state = _log(state, at_unix_s, [("warning", failure.node, failure.message)])
        case StageStarted(title=title, steps=steps, waits=waits):
            begun = {(node, what): StepView("runs") for node, what, _ in steps}
            waiting = {(node, what): StepView("waits") for node, what, _ in waits}
            run, line = replace(run, stage=title, steps={**begun, **waiting}), ("note", "", title)
        case Progress(node=node, what=what, done=done, total=total, unit=unit, note=note):
            run = _step(run, node, what, StepView("runs", done, total, unit, note))
        case StepDone(node=node, what=what, seconds=seconds):
            run, line = _step(run, node, what, StepView("done")), ("note", node, f"{what} ({seconds:.1f} s)")
        case StepFailed(node=node, what=what, failure=failure):
            run = _step(run, node, what, StepView("failed"))
            line = ("error", node, f"{what}: {failure.message}")
        case WaitDone(node=node, what=what, seconds=seconds):
            run, line = _step(run, node, what, StepView("done")), ("note", node, f"{what} ({seconds:.1f} s)")
        case PredictionMissed(node=node, field=name, predicted=predicted, observed=observed):
            line = ("warning", node, f"{name}: predicted {predicted[:80]}, observed {observed[:80]}")
        case Said(level=level, text=text):
            line = (level, "", text)
        case RunEnded(verb=verb, exit_code=code, seconds=seconds):
            run = replace(run, exit_code=code, steps={})
            line = ("note" if code == 0 else "error", "", f"{verb} ends with {code} after {seconds:.0f} s")
        case _:
            assert_never(happened)
    return _log(replace(state, run=run), at_unix_s, [line] if line else [])


def _step(run: RunView, node: str, what: str, step: StepView) -> RunView:
    return replace(run, steps={**run.steps, (node, what): step})


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Headlines first, errors before warnings; what is ignored last."""
    order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.UNKNOWN: 2, Severity.NOTE: 3}
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                finding.ignored,
                order[finding.severity],
                bool(finding.because_of),
                finding.node,
                finding.check,
            ),
        )
    )
