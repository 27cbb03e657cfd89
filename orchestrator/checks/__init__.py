"""All checks, and `examine`, which asks them. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from orchestrator.checks import (
    addresses,
    bandwidth,
    firmwares,
    gpus,
    kernels,
    memories,
    netplans,
    networks,
    ports,
    power,
    software,
    storages,
    topology,
)
from orchestrator.checks.causes import FAULTS, rank
from orchestrator.checks.check import PROBE_MAX_AGE_S, Check, Hit, Node, Yard, value
from orchestrator.model.finding import Finding, Severity, Why
from orchestrator.model.hardware import Fact, FactError
from orchestrator.model.probes import Probes

CHECKS: tuple[Check, ...] = (
    *ports.CHECKS,
    *addresses.CHECKS,
    *netplans.CHECKS,
    *bandwidth.CHECKS,
    *topology.CHECKS,
    *networks.CHECKS,
    *kernels.CHECKS,
    *gpus.CHECKS,
    *power.CHECKS,
    *memories.CHECKS,
    *firmwares.CHECKS,
    *storages.CHECKS,
    *software.CHECKS,
)
REACHABLE, UNREAD, ABSENT = "node.reachable", "facts.read", "facts.given"
OPTIONAL_FACTS = frozenset({"peers", "probes"})  # their absence is "not tested", not a gap of the capture
UNTESTED = "not tested: run doctor --deep"


def examine(yard: Yard, ignore: Collection[str] = ()) -> tuple[Finding, ...]:
    """Everything that the checks say, causes first: consequences name the finding that explains them.

    Args:
        yard: the nodes with their facts, and what the profile wants of them.
        ignore: check ids that are demoted to notes; they are still there.
    """
    found = [*_unreachable(yard), *_gaps(yard)]
    for check in CHECKS:
        if (check.only_docker and not yard.docker) or (check.needs_peers and len(yard.nodes) < 2):
            continue
        found += _ask(check, yard)
    ranked = rank(tuple(found))
    ordered = sorted(
        ranked, key=lambda finding: (list(Severity).index(finding.severity), finding.because_of != "")
    )
    return demote(tuple(ordered), ignore)


def demote(findings: tuple[Finding, ...], ignore: Collection[str]) -> tuple[Finding, ...]:
    """Make notes of the ignored ones; what they explained stands for itself again."""
    ignored = {finding.key for finding in findings if finding.check in ignore}
    kept = []
    for finding in findings:
        if finding.key in ignored and finding.severity is not Severity.NOTE:
            changed = {"severity": Severity.NOTE, "ignored": True, "was": finding.severity, "because_of": ""}
            kept.append(finding.model_copy(update=changed))
        elif finding.because_of in ignored:
            kept.append(finding.model_copy(update={"because_of": ""}))
        else:
            kept.append(finding)
    return tuple(kept)


def _unreachable(yard: Yard) -> Iterator[Finding]:
    for node in yard.nodes:
        if node.hardware is None:
            yield Finding(
                check=REACHABLE,
                node=node.name,
                severity=Severity.UNKNOWN,
                measured=node.unreachable or "no answer",
                expected="the node answers",
                remedy="check power, network, user and key; ./start.sh enroll sets the key up",
                why_unknown="unreachable",
            )


def _gaps(yard: Yard) -> Iterator[Finding]:
    for node in yard.seen:
        absent = []
        for name in type(node.facts).model_fields:
            fact: Fact[object] | None = getattr(node.facts, name)
            if fact is None and name not in OPTIONAL_FACTS:
                absent.append(name)
            if fact is not None and fact.error is not None:
                yield Finding(
                    check=UNREAD,
                    node=node.name,
                    link=name,
                    severity=Severity.UNKNOWN,
                    measured=_why_text(fact.error),
                    expected=f"the fact {name}",
                    evidence=fact.error.text,
                    remedy=_grant(fact.error.need) if fact.error.need else "look at the tool on the node",
                    why_unknown=_why(fact.error),
                    origin=fact.origin,
                )
        if absent:
            yield Finding(
                check=ABSENT,
                node=node.name,
                severity=Severity.UNKNOWN,
                measured=f"not in this capture: {', '.join(absent)}",
                expected="all facts",
                why_unknown="untested",
            )


def _why(error: FactError) -> Why:
    match error.kind:
        case "right":
            return "right"
        case "tool":
            return "tool"
        case "timeout" | "unreadable":
            return "failed"


def _grant(need: str) -> str:
    """How the agent's account gets what a fact needs: `enroll` installs command lines, not memberships of groups."""
    enroll = ": ./start.sh enroll lists such rights and installs them" if need.startswith("root") else ""
    return f"give the user {need}{enroll}"


def _why_text(error: FactError) -> str:
    match error.kind:
        case "right":
            return f"needs {error.need}"
        case "timeout":
            return f"no answer in time: {error.text}"
        case "tool" | "unreadable":
            return error.text


def _ask(check: Check, yard: Yard) -> Iterator[Finding]:
    blind = [] if check.sees_errors else [found for node in yard.seen if (found := _blind(check, node))]
    yield from blind
    hidden = {finding.node for finding in blind}
    hits: list[Finding] = []
    if check.whole is not None:
        hits += [_finding(check, hit, hit.node, yard) for hit in check.whole(yard) if hit.node not in hidden]
    for node in yard.seen:
        if node.name in hidden:
            continue
        if check.each is not None:
            hits += [_finding(check, hit, node.name, yard) for hit in check.each(node)]
        if check.within is not None:
            hits += [_finding(check, hit, node.name, yard) for hit in check.within(node, yard)]
    yield from _merged(hits)
    if check.deep:
        judged = {finding.node for finding in hits} | hidden
        yield from _untested(check, yard, judged)


def _merged(findings: list[Finding]) -> Iterator[Finding]:
    """One finding for each node and severity: four ports with one fault are one headline that names the four."""
    groups: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.node, finding.severity), []).append(finding)
    for group in groups.values():
        first = group[0]
        if len(group) == 1:
            yield first
            continue
        texts = [f"{item.link}: {item.measured}" if item.link else item.measured for item in group]
        changed = {
            "link": ", ".join(dict.fromkeys(item.link for item in group if item.link)),
            "measured": "; ".join(dict.fromkeys(texts))[:600],
            "evidence": "; ".join(dict.fromkeys(item.evidence for item in group if item.evidence))[:600],
        }
        yield first.model_copy(update=changed)


def _blind(check: Check, node: Node) -> Finding | None:
    """Unknown, when a fact that the check reads is missing."""
    for name in check.reads:
        fact: Fact[object] | None = getattr(node.facts, name)
        if fact is None and name not in OPTIONAL_FACTS:
            because, why, text = (
                f"{ABSENT}@{node.name}",
                "untested",
                f"the fact {name} is not in this capture",
            )
        elif fact is not None and fact.error is not None:
            because, why = f"{UNREAD}@{node.name}/{name}", _why(fact.error)
            text = _why_text(fact.error)
        else:
            continue
        return Finding(
            check=check.id,
            node=node.name,
            severity=Severity.UNKNOWN,
            measured=text,
            expected=check.good,
            because_of=because,
            why_unknown=why,
        )
    return None


def _finding(check: Check, hit: Hit, node: str, yard: Yard) -> Finding:
    origins = {
        fact.origin
        for seen in yard.seen
        if node in ("", seen.name)
        for name in check.reads
        if (fact := getattr(seen.facts, name)) is not None
    }
    return Finding(
        check=check.id,
        node=node,
        link=hit.link,
        severity=hit.severity or check.severity,
        measured=hit.measured[:600],
        expected=check.good,
        evidence=hit.evidence[:600],
        remedy=hit.remedy or check.remedy,
        because_of=hit.because_of,
        confidence=hit.confidence or check.confidence,
        origin=origins.pop() if len(origins) == 1 else "",
    )


def _tested(check: Check, probes: Probes | None, node: Node, now_unix_s: float) -> bool:
    def fresh(unix_s: float) -> bool:
        return now_unix_s - unix_s <= PROBE_MAX_AGE_S

    if check.deep == "ping":
        peers = value(node.facts.peers)
        return peers is not None and all(peer.answers is not None for peer in peers)
    if probes is None:
        return False
    match check.deep:
        case "burn":
            return probes.burn is not None and fresh(probes.burn.unix_s)
        case "gemv":
            return probes.gemv is not None and fresh(probes.gemv.unix_s)
        case "nvme":
            return probes.nvme is not None and fresh(probes.nvme.unix_s)
        case "allreduce":
            return probes.allreduce is not None and fresh(probes.allreduce.unix_s)
        case "rdma":
            return any(fresh(item.unix_s) for item in probes.rdma)
        case "":
            return True


def _untested(check: Check, yard: Yard, judged: set[str]) -> Iterator[Finding]:
    """One finding for all nodes without a fresh result, and one for each node that lacks the tool."""
    waiting = []
    for node in yard.seen:
        probes = value(node.facts.probes)
        if node.name in judged or _tested(check, probes, node, yard.now_unix_s):
            continue
        missing = probes.missing.get(check.deep) if probes else None
        if missing is None:
            waiting.append(node.name)
            continue
        yield Finding(
            check=check.id,
            node=node.name,
            severity=Severity.UNKNOWN,
            measured=f"not tested: {missing}",
            expected=check.good,
            why_unknown="tool",
        )
    if waiting:
        yield Finding(
            check=check.id,
            severity=Severity.UNKNOWN,
            measured=UNTESTED,
            expected=check.good,
            evidence=", ".join(waiting),
            why_unknown="untested",
        )


def headlines(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Errors and warnings that nothing else explains."""
    return tuple(finding for finding in findings if finding.severity in FAULTS and not finding.because_of)


def exit_code(findings: tuple[Finding, ...], *, strict: bool) -> int:
    """0 fine, 1 an error (with `strict` a warning too), 3 something could not be determined.

    A missing right, a missing tool and a probe that was not run are said, and do not fail.
    """
    counted = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    if any(finding.severity in counted for finding in findings):
        return 1
    blind = ("unreachable", "failed")
    return 3 if any(f.severity is Severity.UNKNOWN and f.why_unknown in blind for f in findings) else 0
