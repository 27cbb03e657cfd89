"""Everything about one node, as one text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo

from rich.text import Text

from orchestrator.model.facts import PHASES, Phase
from orchestrator.view.headline import slow_rails
from orchestrator.view.node import NodeView
from orchestrator.view.state import State
from orchestrator.view.tui.styles import BAD, BUSY, DIM, WARN
from orchestrator.view.tui.table import Cell, Column, clipped, draw
from orchestrator.view.tui.words import UNKNOWN, count, gib, gigabits, number, percent, seconds, span, spark

LINK_COLUMNS = (
    Column("LINK", 14),
    Column("CAGE", 4),
    Column("STATE", 8),
    Column("↑ Gb/s", 6, 0, right=True),
    Column("↓ Gb/s", 6, 0, right=True),
    Column("PEAK", 6, 2, right=True),
    Column("ERRORS", 6, 1, right=True),
    Column("ECN", 5, 4, right=True),
    Column("ADDRESS", 18, 3),
    Column("LOAD TEST", 9, 5, right=True),
)


def node_detail(state: State, node: NodeView, now_unix_s: float, width: int, zone: tzinfo = UTC) -> Text:
    """Memory, GPU, links, drives, the boot timeline of its ranks, jobs and its findings."""
    sample = node.sample
    if sample is None:
        why = node.silent.message if node.silent else "it has never answered"
        return Text(clipped(f"{node.name}: {why}", width), style=WARN)
    lines: list[Text] = []
    if not node.known(now_unix_s):
        why = node.silent.message if node.silent else "no sample"
        age = span(now_unix_s - node.at_unix_s)
        lines.append(
            Text(clipped(f"silent for {age} ({why}); what follows is its last word", width), style=WARN)
        )
    memory, disk = sample.memory, sample.disk
    origin = " (hardware facts are a recording)" if sample.hardware == "recorded" else ""
    lines += [
        _pair("memory", f"{gib(memory.available_bytes)} of {gib(memory.total_bytes)} GiB available, "
              f"floor {gib(node.floor_bytes)}, pressure {number(memory.pressure_some, 1, ' %')}"),
        _pair("", spark(node.available, min(60, width - 12), float(node.floor_bytes or 0))),
        _pair("processor", f"{percent(node.processor_busy)} of {sample.processor.cpus}"),
        _pair("disk", f"{gib(disk.free_bytes)} of {gib(disk.total_bytes)} GiB free"),
        _pair("drives", ", ".join(f"{name} {seconds(took)} a read" for name, took in node.read_latency_s.items())),
        _pair("power", ", ".join(f"{name} {watts:.1f} W" for name, watts in list(sample.rails_w.items())[:6])),
        _pair("gpu", _gpu(node)),
        _pair("agent", f"{sample.agent.cpu_s:.1f} s of processor, {sample.agent.resident_bytes / 2**20:.0f} MiB, "
              f"connected {node.connections}×{origin}"),
        Text(""),
    ]  # fmt: skip
    slow = slow_rails(node)
    tests = {probe.netdev: probe for probe in (node.probed.rails if node.probed else ())}
    rows: list[list[Cell]] = []
    for view in node.links:
        link = view.link
        good = link.up is not False or not view.wanted
        rows.append(
            [
                link.netdev,
                link.cage,
                Text(link.state.lower(), style="" if good else BAD),
                gigabits(view.sent_per_s),
                gigabits(view.received_per_s),
                gigabits(view.peak_per_s),
                Text(count(link.errors), style=WARN if link.errors else ""),
                count(link.congestion),
                ", ".join(link.addresses) or "–",
                Text(
                    number(tests[link.netdev].gbps if link.netdev in tests else None, 0),
                    style=BAD if link.netdev in slow else "",
                ),
            ]
        )
    lines.append(draw(LINK_COLUMNS, rows, width) if rows else Text("no links", style=DIM))
    for rank in node.ranks:
        now = rank.now
        lines += [
            Text(""),
            Text(
                clipped(f"rank {now.rank} of {now.deployment}, generation {now.generation}", width),
                style=BUSY,
            ),
        ]
        lines += _timeline(now.phases or {}, zone, width)
        if now.ended:
            lines.append(Text(clipped(now.ended, width), style=BAD))
    for job in sample.jobs:
        share = f" {job.done / job.total:.0%} of {count(job.total)} {job.unit}" if job.total else ""
        lines.append(Text(clipped(f"job {job.id}: {job.state}{share} {job.error}", width)))
    for finding in state.findings:
        if finding.node == node.name:
            lines.append(
                Text(
                    clipped(f"{finding.severity.value}: {finding.measured}; {finding.remedy}", width),
                    style=WARN,
                )
            )
    return Text("\n").join(lines)


def _pair(name: str, value: str) -> Text:
    return Text.assemble((f"{name:<10} ", DIM), value or UNKNOWN)


def _gpu(node: NodeView) -> str:
    gpu = node.gpu
    if gpu is None:
        return "–"
    best = f", best under load {node.clock_baseline_mhz:.0f}" if node.clock_baseline_mhz else ""
    return (
        f"{number(gpu.sm_mhz)} MHz of {number(gpu.sm_max_mhz)}{best}, {number(gpu.power_w)} W, "
        f"{number(gpu.temperature_c)} °C, {number(gpu.utilization_percent)} % busy"
    )


def _timeline(phases: Mapping[Phase, float], zone: tzinfo, width: int) -> list[Text]:
    seen = [(name, phases[name]) for name in PHASES if name in phases]
    begun = seen[0][1] if seen else 0.0
    return [
        Text(clipped(f"  {name:<9}{datetime.fromtimestamp(at, zone):%H:%M:%S}  +{span(at - begun)}", width))
        for name, at in seen
    ]
