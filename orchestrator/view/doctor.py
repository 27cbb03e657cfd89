"""The doctor's report: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.checks import CHECKS, UNTESTED, exit_code
from orchestrator.checks.check import Node, Yard, gib, value
from orchestrator.checks.manual import TITLES, listed, section
from orchestrator.checks.topology import draw, layout
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.plain import clean

COUNTS = Path(__file__).resolve().parent.parent / "checks" / "cases.json"
STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "yellow",
    Severity.UNKNOWN: "magenta",
    Severity.NOTE: "dim",
}
INDENT = " " * 10


def list_data() -> dict[str, Any]:
    """`doctor --list --json`."""
    return listed(json.loads(COUNTS.read_text()))


def print_list(console: Console) -> None:
    """`doctor --list` for people."""
    for row in list_data()["checks"]:
        _say(console, Text.assemble((f"{row['id']:20}", "bold"), f" {row['severity']:8} {row['good']}"))


def counted(findings: Sequence[Finding]) -> dict[str, int]:
    """Headlines by severity, what a missing right or an unrun probe leaves open apart."""
    heads = [item for item in findings if not item.because_of]
    found = Counter(str(item.severity) for item in heads if item.why_unknown != "untested")
    found["untested"] = sum(item.why_unknown == "untested" for item in heads)
    found["ignored"] = sum(item.ignored for item in findings)
    return {
        name: found.get(name, 0) for name in ("error", "warning", "unknown", "note", "untested", "ignored")
    }


def data(yard: Yard, findings: Sequence[Finding], *, strict: bool) -> dict[str, Any]:
    """`doctor --json`."""
    return {
        "schema": "sparkyard/doctor/v1",
        "nodes": {
            node.name: {
                "answered": node.hardware is not None,
                "took_s": node.hardware.took_s if node.hardware else None,
            }
            for node in yard.nodes
        },
        "layout": draw(layout(yard)) if yard.seen else [],
        "counts": counted(findings),
        "exit_code": exit_code(tuple(findings), strict=strict),
        "findings": [
            item.model_dump(mode="json", exclude_defaults=True) | {"key": item.key} for item in findings
        ],
    }


def report(console: Console, yard: Yard, findings: Sequence[Finding], *, verbose: bool) -> None:
    """The whole report: layout, roll-up by section, one line for each sound node and link, the counts last."""
    if yard.seen:
        for text in draw(layout(yard)):
            _say(console, text)
    explained: dict[str, list[Finding]] = {}
    for item in findings:
        if item.because_of:
            explained.setdefault(item.because_of, []).append(item)
    heads = [item for item in findings if not item.because_of and item.why_unknown != "untested"]
    for title in TITLES:
        members = [item for item in heads if section(item.check) == title]
        shown = [item for item in members if verbose or item.severity is not Severity.NOTE or item.ignored]
        if shown:
            _say(console, Text(f"{title}: {_rolled(members)}", style="bold"))
        for item in shown:
            _print(console, item, explained.get(item.key, []), verbose=verbose)
    faulty = {item.node for item in heads if item.severity is not Severity.NOTE}
    for node in yard.seen:
        if node.name not in faulty:
            _say(console, Text.assemble(("ok        ", "green"), _node_line(node)))
    open_probes = sorted({item.check for item in findings if item.measured == UNTESTED})
    if open_probes:
        _say(console, Text(f"not tested: {', '.join(open_probes)} (./start.sh doctor --deep)", style="dim"))
    gaps = [item for item in findings if item.check == "facts.given"]
    for item in gaps:
        _say(console, Text(f"{item.node}: {item.measured}", style="dim"))
    _say(console, last_line(yard, findings))


def _say(console: Console, text: Text | str) -> None:
    """One line: wrapped to a terminal, whole in a pipe."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def last_line(yard: Yard, findings: Sequence[Finding]) -> str:
    """The line that says it all."""
    counts = counted(findings)
    words = [
        _plural(counts["error"], "error"),
        _plural(counts["warning"], "warning"),
        f"{counts['unknown']} unknown",
        _plural(counts["note"], "note"),
    ]
    if counts["ignored"]:
        words.append(f"{counts['ignored']} ignored")
    return f"{', '.join(words)}: {len(CHECKS)} checks on {_plural(len(yard.nodes), 'node')}"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _rolled(items: Sequence[Finding]) -> str:
    counts = Counter(item.severity for item in items)
    return ", ".join(f"{counts[severity]} {severity}" for severity in Severity if counts[severity])


def _print(console: Console, item: Finding, folded: Sequence[Finding], *, verbose: bool) -> None:
    place = " ".join(part for part in (item.node, item.link) if part)
    label = "ignored" if item.ignored else str(item.severity)
    _say(
        console,
        Text.assemble(
            (f"{label:9} ", STYLES[item.severity]),
            (item.check, "bold"),
            f"  {clean(place)}  {clean(item.measured)}",
        ),
    )
    if item.severity in (Severity.ERROR, Severity.WARNING) or verbose:
        if item.expected:
            _say(console, Text(f"{INDENT}expected: {item.expected}"))
        if item.remedy:
            _say(console, Text(f"{INDENT}remedy: {item.remedy}"))
    if verbose and item.evidence:
        _say(console, Text(f"{INDENT}evidence: {clean(item.evidence)}", style="dim"))
    if verbose and (item.confidence != "high" or item.origin == "recorded"):
        _say(
            console,
            Text(f"{INDENT}confidence: {item.confidence}; facts: {item.origin or 'mixed'}", style="dim"),
        )
    if folded:
        names = ", ".join(
            dict.fromkeys(f"{other.check}@{other.node}" if other.node else other.check for other in folded)
        )
        _say(console, Text(f"{INDENT}explains: {names}"))
        for other in folded if verbose else ():
            _say(console, Text(f"{INDENT}  {other.check}: {clean(other.measured)}", style="dim"))


def _node_line(node: Node) -> str:
    """What one sees at a glance of a sound node."""
    facts = node.facts
    parts = [node.name]
    gpu, kernel, memory = value(facts.gpu), value(facts.kernel), value(facts.memory)
    if gpu and gpu.devices:
        parts.append(f"{gpu.devices[0].name} {gpu.devices[0].driver}")
    if kernel:
        parts.append(kernel.release)
    if memory:
        parts.append(f"{gib(memory.available_bytes)} of {gib(memory.total_bytes)} available")
    up = [item for item in node.functions if item.up]
    if up:
        speeds = sorted({f"{(item.speed_mbps or 0) // 1000}G MTU {item.mtu}" for item in up})
        parts.append(f"{len(up)} link ends at {', '.join(speeds)}")
    origins = {fact.origin for name in type(facts).model_fields if (fact := getattr(facts, name)) is not None}
    if "recorded" in origins:
        parts.append("recorded" if origins == {"recorded"} else "hardware recorded")
    return clean(" · ".join(parts))
