"""Makes dashboards/*.json: `.venv/bin/python docs/monitoring/dashboards.py`. A test compares and runs every query."""

# ruff: noqa: E501, INP001 - a table of panels, one a line; docs is no package
from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grafana_foundation_sdk.builders import dashboard, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import prometheus as query
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

HERE = Path(__file__).resolve().parent
SOURCE = DataSourceRef(type_val="prometheus", uid="sparkyard-prometheus")
WIDTH, HEIGHT = 8, 8
"""Three panels a row of Grafana's 24 columns."""


@dataclass(frozen=True)
class Panel:
    """One panel: its queries are (expression, legend)."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Literal["lines", "number", "states"] = "lines"
    about: str = ""
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def one(expression: str, legend: str = "") -> tuple[tuple[str, str], ...]:
    """A panel's only query."""
    return ((expression, legend),)


FLEET = (
    Row(
        "Service",
        (
            Panel("State", one("sparkyard_deployment_state == 1", "{{deployment}} {{state}}"), kind="states"),
            Panel(
                "Tokens a second",
                one(
                    "sum by (deployment) (rate(sglang:generation_tokens_total[$__rate_interval]))",
                    "{{deployment}}",
                ),
                least=0,
            ),
            Panel(
                "Generation, restarts",
                (
                    ("sparkyard_deployment_generation", "generation"),
                    ("sparkyard_restarts_total", "restarts"),
                    ("sparkyard_breaker_open", "breaker open"),
                ),
                kind="number",
            ),
            Panel(
                "First token, 95 %",
                one(
                    "histogram_quantile(0.95, sum by (le) (rate(sglang:time_to_first_token_seconds_bucket[$__rate_interval])))",
                    "p95",
                ),
                "s",
                about="No value while no request came.",
            ),
            Panel(
                "Requests",
                (("sum(sglang:num_running_reqs)", "running"), ("sum(sglang:num_queue_reqs)", "queued")),
                least=0,
            ),
            Panel("Findings", one("sparkyard_findings", "{{severity}}"), kind="number"),
        ),
    ),
    Row(
        "Nodes",
        (
            Panel("Nodes that answer", one("sparkyard_node_up", "{{node}}"), kind="states"),
            Panel(
                "Memory above the guard's floor",
                one("sparkyard_memory_margin_bytes", "{{node}}"),
                "bytes",
                about="Below 0 the guard kills the engine.",
            ),
            Panel(
                "Halves of cages that are up",
                one("sparkyard_link_halves_up / sparkyard_link_halves", "{{node}} {{cage}}"),
                "percentunit",
                least=0,
                most=1,
            ),
            Panel(
                "Peak rate by link",
                one("sparkyard_link_peak_bytes_per_second * 8", "{{node}} {{link}}"),
                "bps",
                least=0,
            ),
            Panel(
                "Phase of each rank", one("sparkyard_rank_phase == 1", "r{{rank}} {{phase}}"), kind="states"
            ),
            Panel(
                "Stream opened",
                one("sparkyard_node_connections_total", "{{node}}"),
                about="Steady: one connection a node, held open.",
            ),
        ),
    ),
)
NODE = (
    Row(
        "Links",
        (
            Panel(
                "Links that are up",
                one('sparkyard_link_up{node=~"$node"}', "{{node}} {{link}}"),
                kind="states",
            ),
            Panel(
                "Peak rate",
                one('sparkyard_link_peak_bytes_per_second{node=~"$node"} * 8', "{{node}} {{link}}"),
                "bps",
                least=0,
            ),
            Panel(
                "Last load test",
                one('sparkyard_rail_probe_bytes_per_second{node=~"$node"} * 8', "{{node}} {{link}}"),
                "bps",
                least=0,
                about="A sound twin moves 92 to 112 Gb/s, a latched one 8 to 25.",
            ),
        ),
    ),
    Row(
        "Memory",
        (
            Panel(
                "Above the floor",
                (
                    ('sparkyard_memory_margin_bytes{node=~"$node"}', "{{node}} margin"),
                    ('sparkyard_memory_floor_bytes{node=~"$node"}', "{{node}} floor"),
                ),
                "bytes",
            ),
            Panel(
                "Lowest since the rank began",
                one('sparkyard_memory_low_water_bytes{node=~"$node"}', "{{node}} r{{rank}}"),
                "bytes",
            ),
            Panel(
                "Pressure (node_exporter)",
                one("rate(node_pressure_memory_waiting_seconds_total[$__rate_interval])", "{{instance}}"),
                "percentunit",
                least=0,
            ),
        ),
    ),
    Row(
        "GPU and drives",
        (
            Panel(
                "Clock under load against its own best",
                one('sparkyard_gpu_clock_ratio{node=~"$node"}', "{{node}}"),
                "percentunit",
                least=0,
            ),
            Panel(
                "Best clock under load",
                one('sparkyard_gpu_clock_baseline_hertz{node=~"$node"}', "{{node}}"),
                "hertz",
            ),
            Panel(
                "Read time of drives against the other nodes",
                one('sparkyard_drive_read_skew_ratio{node=~"$node"}', "{{node}} {{drive}}"),
                least=0,
            ),
        ),
    ),
    Row(
        "Watching",
        (
            Panel(
                "Processor of the agent",
                one('rate(sparkyard_agent_cpu_seconds_total{node=~"$node"}[$__rate_interval])', "{{node}}"),
                "percentunit",
                least=0,
                about="Share of one core.",
            ),
            Panel(
                "Memory of the agent",
                one('sparkyard_agent_resident_bytes{node=~"$node"}', "{{node}}"),
                "bytes",
                least=0,
            ),
            Panel(
                "Processor of the host (node_exporter)",
                one(
                    '1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[$__rate_interval]))',
                    "{{instance}}",
                ),
                "percentunit",
                least=0,
                most=1,
            ),
        ),
    ),
)
ENGINE = (
    Row(
        "Requests",
        (
            Panel(
                "Tokens a second",
                (
                    (
                        'sum(rate(sglang:generation_tokens_total{deployment=~"$deployment"}[$__rate_interval]))',
                        "generated",
                    ),
                    (
                        'sum(rate(sglang:prompt_tokens_total{deployment=~"$deployment"}[$__rate_interval]))',
                        "prompt",
                    ),
                ),
                least=0,
            ),
            Panel(
                "Running and waiting",
                (
                    ('sum(sglang:num_running_reqs{deployment=~"$deployment"})', "running"),
                    ('sum(sglang:num_queue_reqs{deployment=~"$deployment"})', "queued"),
                ),
                least=0,
            ),
            Panel(
                "First token",
                tuple(
                    (
                        f'histogram_quantile({share}, sum by (le) (rate(sglang:time_to_first_token_seconds_bucket{{deployment=~"$deployment"}}[$__rate_interval])))',
                        f"p{share * 100:.0f}",
                    )
                    for share in (0.5, 0.95, 0.99)
                ),
                "s",
            ),
            Panel(
                "KV pool in use",
                (
                    ('max(sglang:token_usage{deployment=~"$deployment"})', "tokens"),
                    ('max(sglang:swa_token_usage{deployment=~"$deployment"})', "sliding window"),
                ),
                "percentunit",
                least=0,
                most=1,
            ),
            Panel(
                "Accepted tokens a step",
                one('max(sglang:spec_accept_length{deployment=~"$deployment"})', "length"),
                least=0,
            ),
            Panel(
                "Prefix cache hits",
                one('max(sglang:cache_hit_rate{deployment=~"$deployment"})', "hits"),
                "percentunit",
                least=0,
                most=1,
            ),
        ),
    ),
    Row(
        "Ranks",
        (
            Panel(
                "Ranks alive",
                one('sparkyard_rank_up{deployment=~"$deployment"}', "r{{rank}} {{node}}"),
                kind="states",
            ),
            Panel(
                "Since the last line of output",
                one(
                    'time() - sparkyard_rank_last_log_timestamp_seconds{deployment=~"$deployment"}',
                    "r{{rank}}",
                ),
                "s",
                least=0,
            ),
            Panel(
                "Boot timeline",
                one(
                    'sparkyard_rank_phase_timestamp_seconds{deployment=~"$deployment"} - on (deployment, node, rank) group_left sparkyard_rank_phase_timestamp_seconds{phase="starting"}',
                    "r{{rank}} {{phase}}",
                ),
                "s",
                least=0,
                about="Seconds from the rank's start to the first sight of each phase.",
            ),
            Panel(
                "Canary",
                (
                    ('sparkyard_canary_seconds{deployment=~"$deployment"}', "seconds"),
                    ('sparkyard_canary_success{deployment=~"$deployment"}', "success"),
                ),
                "short",
                least=0,
            ),
            Panel(
                "Canaries that failed",
                one('sparkyard_canary_failures_total{deployment=~"$deployment"}', "{{deployment}}"),
                kind="number",
            ),
            Panel(
                "State",
                one('sparkyard_deployment_state{deployment=~"$deployment"} == 1', "{{state}}"),
                kind="states",
            ),
        ),
    ),
)
ENGRAM = (
    Row(
        "Reads",
        (
            Panel(
                "Rows a second",
                one(
                    'sum by (node, rank) (rate(sparkyard_engram_rows_total{node=~"$node"}[$__rate_interval]))',
                    "r{{rank}} {{node}}",
                ),
                least=0,
            ),
            Panel(
                "Batch time, 99 %",
                one(
                    'histogram_quantile(0.99, sum by (node, rank, le) (rate(sparkyard_engram_batch_seconds_bucket{node=~"$node"}[$__rate_interval])))',
                    "r{{rank}} {{node}}",
                ),
                "s",
                least=0,
            ),
            Panel(
                "Read time against the other ranks",
                one('sparkyard_engram_read_skew_ratio{node=~"$node"}', "r{{rank}} {{node}}"),
                least=0,
                about="The slowest rank sets the pace of all.",
            ),
            Panel(
                "Hits in memory",
                one(
                    'sum by (node, rank) (rate(sparkyard_engram_cache_hits_total{node=~"$node"}[$__rate_interval])) / sum by (node, rank) (rate(sparkyard_engram_unique_rows_total{node=~"$node"}[$__rate_interval]))',
                    "r{{rank}} {{node}}",
                ),
                "percentunit",
                least=0,
                most=1,
            ),
            Panel(
                "Bytes a second",
                one(
                    'sum by (node, rank) (rate(sparkyard_engram_read_bytes_total{node=~"$node"}[$__rate_interval]))',
                    "r{{rank}} {{node}}",
                ),
                "Bps",
                least=0,
            ),
            Panel(
                "Errors",
                one('sparkyard_engram_errors_total{node=~"$node"}', "r{{rank}} {{node}}"),
                kind="number",
            ),
        ),
    ),
)
ALL = {
    "fleet": ("sparkyard: fleet", FLEET, ()),
    "node": ("sparkyard: node", NODE, (("node", "sparkyard_node_up"),)),
    "engine": ("sparkyard: engine", ENGINE, (("deployment", "sparkyard_deployment_generation"),)),
    "engram": ("sparkyard: Engram", ENGRAM, (("node", "sparkyard_node_up"),)),
}


def build(name: str) -> str:
    """One dashboard as Grafana reads it."""
    title, rows, variables = ALL[name]
    made = (
        dashboard.Dashboard(title)
        .uid(f"sparkyard-{name}")
        .tags(["sparkyard"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
    )
    for variable, series in variables:
        made = made.with_variable(
            dashboard.QueryVariable(variable)
            .datasource(SOURCE)
            .query(f"label_values({series}, {variable})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    number = 0
    for row in rows:
        number += 1
        made = made.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made = made.with_panel(_panel(panel).id(number))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel | statetimeline.Panel:
    match panel.kind:
        case "lines":
            made: timeseries.Panel | stat.Panel | statetimeline.Panel = timeseries.Panel().fill_opacity(8)
        case "number":
            made = stat.Panel()
        case "states":
            made = statetimeline.Panel()
    made = made.title(panel.title).description(panel.about).unit(panel.unit).datasource(SOURCE)
    made = made.span(WIDTH).height(HEIGHT)
    if panel.least is not None:
        made = made.min(panel.least)
    if panel.most is not None:
        made = made.max(panel.most)
    for index, (expression, legend) in enumerate(panel.queries):
        target = query.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + index))
        made = made.with_target(target)
    return made


def main() -> int:
    """Write all."""
    for name in ALL:
        (HERE / "dashboards" / f"{name}.json").write_text(build(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
