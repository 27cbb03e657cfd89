"""Every series that the exporter offers, as text: name, kind, labels, meaning. The reference is made from this list."""

# ruff: noqa: E501 - a table: one row a line
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric family."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


RANK = ("deployment", "node", "rank")
ALL: tuple[Series, ...] = (
    Series("sparkyard_node_up", "gauge", ("node",), "1 while the node's samples arrive."),
    Series("sparkyard_node_connections_total", "counter", ("node",), "Times that the node's stream of samples was opened."),
    Series("sparkyard_agent_cpu_seconds_total", "counter", ("node",), "Processor time of the node's agent."),
    Series("sparkyard_agent_resident_bytes", "gauge", ("node",), "Resident memory of the node's agent."),
    Series("sparkyard_deployment_state", "gauge", ("deployment", "state"), "1 for the state that holds: serving, degraded, booting, down, stopped, unknown."),
    Series("sparkyard_deployment_generation", "gauge", ("deployment",), "Start of the deployment that runs or ran last."),
    Series("sparkyard_boot_progress_ratio", "gauge", ("deployment",), "How far a boot is, 0 to 1; absent when none runs."),
    Series("sparkyard_restarts_total", "counter", ("deployment",), "Restarts as a whole that the watch ordered."),
    Series("sparkyard_breaker_open", "gauge", ("deployment",), "1 while the circuit breaker forbids restarts."),
    Series("sparkyard_canary_success", "gauge", ("deployment",), "1 when the last generation through all ranks succeeded."),
    Series("sparkyard_canary_seconds", "gauge", ("deployment",), "How long the last canary took."),
    Series("sparkyard_canary_failures_total", "counter", ("deployment",), "Canaries that failed."),
    Series("sparkyard_rank_up", "gauge", RANK, "1 while the rank's guard and engine live."),
    Series("sparkyard_rank_phase", "gauge", (*RANK, "phase"), "1 for the phase that the rank is in."),
    Series("sparkyard_rank_phase_timestamp_seconds", "gauge", (*RANK, "phase"), "Unix time of the first sight of each phase: the boot timeline."),
    Series("sparkyard_rank_last_log_timestamp_seconds", "gauge", RANK, "Unix time of the engine's last line of output."),
    Series("sparkyard_memory_floor_bytes", "gauge", ("node",), "MemAvailable below which the guard kills the engine."),
    Series("sparkyard_memory_margin_bytes", "gauge", ("node",), "MemAvailable above that floor; below 0 the guard kills."),
    Series("sparkyard_memory_low_water_bytes", "gauge", RANK, "Lowest MemAvailable since the rank's start."),
    Series("sparkyard_link_up", "gauge", ("node", "link", "cage"), "1 while the rail's RDMA port and network device are both up; only links that should be up."),
    Series("sparkyard_link_halves_up", "gauge", ("node", "cage"), "How many of the two halves of a cage are up."),
    Series("sparkyard_link_halves", "gauge", ("node", "cage"), "How many halves of a cage should be up."),
    Series("sparkyard_link_peak_bytes_per_second", "gauge", ("node", "link", "cage"), "Highest rate in either direction between two samples of the last 30 s."),
    Series("sparkyard_rail_probe_bytes_per_second", "gauge", ("node", "link", "peer"), "What the last load test measured through this rail."),
    Series("sparkyard_rail_probe_timestamp_seconds", "gauge", ("node", "link", "peer"), "Unix time of that load test."),
    Series("sparkyard_gpu_clock_ratio", "gauge", ("node",), "GPU clock under load against the node's own best; absent without load."),
    Series("sparkyard_gpu_clock_baseline_hertz", "gauge", ("node",), "The node's own best GPU clock under load, median of five readings."),
    Series("sparkyard_drive_read_skew_ratio", "gauge", ("node", "drive"), "Mean read time of the drive against the median of its namesakes on all nodes."),
    Series("sparkyard_engram_read_skew_ratio", "gauge", RANK, "Mean Engram batch time of the rank against the median of all ranks."),
    Series("sparkyard_engram_rows_total", "counter", RANK, "Engram rows asked for."),
    Series("sparkyard_engram_unique_rows_total", "counter", RANK, "Engram rows after duplicates were dropped."),
    Series("sparkyard_engram_cache_hits_total", "counter", RANK, "Unique rows that were in memory already."),
    Series("sparkyard_engram_read_bytes_total", "counter", RANK, "Bytes read from the packed tables."),
    Series("sparkyard_engram_errors_total", "counter", RANK, "Reads that failed or could not be proven."),
    Series("sparkyard_engram_batch_seconds", "histogram", RANK, "Time of one batch of Engram rows, from request to staged."),
    Series("sparkyard_job_progress_ratio", "gauge", ("node", "job", "kind"), "How far long work on the node is, 0 to 1; absent when none runs."),
    Series("sparkyard_findings", "gauge", ("severity",), "Findings of the last checks that nobody ignores, by severity."),
    Series("sparkyard_finding", "gauge", ("check", "node", "link", "severity"), "1 for each finding; at most 200."),
)  # fmt: skip
BY_NAME = {series.name: series for series in ALL}


def reference() -> str:
    """The list as a table of docs/reference.md."""
    rows = [
        "What SGLang, DCGM or node_exporter export is not repeated. A series of a node that does not answer is absent: it",
        "goes stale in Prometheus instead of keeping its last value.",
        "",
        "| series | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    rows += [
        f"| `{series.name}` | {series.kind} | {', '.join(f'`{label}`' for label in series.labels)} | {series.help} |"
        for series in ALL
    ]
    return "\n".join([*rows, ""])
