"""The checks as data and as a page: what `doctor --list` prints and what docs/doctor.md holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.checks import CHECKS
from orchestrator.checks.check import Check

SECTIONS: tuple[tuple[str, str], ...] = (
    ("node", "Nodes"),
    ("facts", "Nodes"),
    ("id", "Nodes"),
    ("clock", "Nodes"),
    ("port", "Nodes"),
    ("topo", "Links"),
    ("cx7", "Links"),
    ("net", "Network"),
    ("nccl", "Network"),
    ("rdma", "Network"),
    ("gpu", "GPU and power"),
    ("spbm", "GPU and power"),
    ("acpi", "GPU and power"),
    ("cpu", "GPU and power"),
    ("mem", "Memory"),
    ("disk", "Storage"),
    ("usb", "Storage"),
    ("nfs", "Storage"),
    ("kernel", "System"),
    ("boot", "System"),
    ("drm", "System"),
    ("fw", "System"),
    ("ota", "System"),
    ("docker", "Docker"),
)
TITLES = tuple(dict.fromkeys(title for _, title in SECTIONS))


def section(check_id: str) -> str:
    """The section that a check id belongs to."""
    return dict(SECTIONS).get(check_id.partition(".")[0], "Nodes")


def thresholds(check: Check) -> str:
    """Good and bad in one sentence."""
    return f"good: {check.good}; bad: {check.bad}"


def listed(cases: Mapping[str, int]) -> dict[str, Any]:
    """`doctor --list --json`. `cases` counts the recorded cases of each check."""
    rows = [
        {
            "id": check.id,
            "section": section(check.id),
            "reads": list(check.reads),
            "probe": check.deep or None,
            "good": check.good,
            "bad": check.bad,
            "thresholds": thresholds(check),
            "severity": str(check.severity),
            "remedy": check.remedy,
            "source": check.source,
            "cases": cases.get(check.id, 0),
        }
        for check in CHECKS
    ]
    return {"schema": "sparkyard/doctor-list/v1", "checks": rows}


def page(cases: Mapping[str, int], public: Sequence[Mapping[str, Any]]) -> str:
    """docs/doctor.md. `public` are the public cases, in order."""
    lines = [
        "# Doctor: every check",
        "",
        "Generated from `orchestrator/checks/` by `python -m tests.nodes.manual`; do not edit. What you type to",
        "ignore a check is its id: `./start.sh doctor --ignore cx7.mtu1500`. Facts come from the readers in",
        "`node_agent/facts/`; a probe is a load test that only `--deep` runs: without a fresh result the answer is",
        "*not tested*, never fine.",
        "",
    ]
    for title in TITLES:
        members = [check for check in CHECKS if section(check.id) == title]
        if not members:
            continue
        lines += [f"## {title}", ""]
        for check in members:
            reads = ", ".join(check.reads) + (f"; probe {check.deep}" if check.deep else "")
            lines += [
                f"### {check.id}",
                "",
                f"* reads: {reads}",
                f"* good: {check.good}",
                f"* bad ({check.severity}): {check.bad}",
                f"* remedy: {check.remedy}",
                f"* source: {check.source}",
                f"* cases: {cases.get(check.id, 0)}",
                "",
            ]
    lines += [
        "## Public cases",
        "",
        "Each is a file under `tests/cases/doctor/`: a healthy cluster with the values of the report put in.",
        "*Not tested* means that no passive fact shows the fault, and that the doctor says so.",
        "",
        "| case | report | symptom | the doctor says | what was made up |",
        "|---|---|---|---|---|",
    ]
    for case in public:
        said = ", ".join(dict.fromkeys(check for check, _ in case["headline"]))
        if not said:
            said = "not tested: " + ", ".join(case["untested"]) if case["untested"] else "healthy"
        folded = f" (explains {', '.join(dict.fromkeys(case['folded']))})" if case["folded"] else ""
        row = (
            case["id"],
            f"{case['title']} ({case['source']})",
            case["symptom"],
            said + folded,
            case["made"],
        )
        lines.append("| " + " | ".join(text.replace("|", "/") for text in row) + " |")
    return "\n".join(lines) + "\n"
