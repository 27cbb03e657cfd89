"""The exporter: a collector that reads one `State` and does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from orchestrator.model.finding import Severity
from orchestrator.model.sample import EngramNow
from orchestrator.view.headline import KINDS, cages, generation, ranks, situation, skews
from orchestrator.view.node import NodeView, RankView
from orchestrator.view.rates import median
from orchestrator.view.series import BY_NAME, Series
from orchestrator.view.state import State

BITS = 8
StateSource = Callable[[], tuple[State, float]]
"""The newest state, and the time now in unix seconds."""


class Families:
    """Metric families under their declared names; a name or a label that is not declared is an error of ours."""

    def __init__(self) -> None:
        self._made: dict[str, Metric] = {}

    def add(self, name: str, labels: tuple[str, ...], value: float | bool | None) -> None:
        """One value of a gauge or counter; None adds nothing, so that the series is absent."""
        if value is not None:
            family = self._family(BY_NAME[name])
            if isinstance(family, HistogramMetricFamily) or len(labels) != len(BY_NAME[name].labels):
                raise AssertionError(f"{name}: a value with {len(labels)} labels")
            family.add_metric(list(labels), float(value))

    def add_histogram(self, name: str, labels: tuple[str, ...], read: EngramNow) -> None:
        """The batch latencies of one reader."""
        if not read.latency or len(read.latency) != len(read.latency_bounds_us) + 1:
            return
        family = self._family(BY_NAME[name])
        total, buckets = 0, []
        for bound, count in zip((*read.latency_bounds_us, None), read.latency, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else repr(bound / 1e6), total))
        if isinstance(family, HistogramMetricFamily):
            family.add_metric(list(labels), buckets, sum_value=read.read_s)

    def _family(self, series: Series) -> GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily:
        if series.name not in self._made:
            match series.kind:
                case "counter":
                    made: Metric = CounterMetricFamily(
                        series.name.removesuffix("_total"), series.help, labels=series.labels
                    )
                case "histogram":
                    made = HistogramMetricFamily(series.name, series.help, labels=series.labels)
                case _:
                    made = GaugeMetricFamily(series.name, series.help, labels=series.labels)
            self._made[series.name] = made
        found = self._made[series.name]
        if not isinstance(found, GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily):
            raise AssertionError(series.name)
        return found

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._made.values())


class StateCollector(Collector):
    """Turns the newest state into metric families at each scrape."""

    def __init__(self, source: StateSource) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        state, now_unix_s = self._source()
        return families(state, now_unix_s)


def registry(source: StateSource) -> CollectorRegistry:
    """A registry with only our series: nothing of this process, which is not what anybody asked about."""
    made = CollectorRegistry(auto_describe=False)
    made.register(StateCollector(source))
    return made


def families(state: State, now_unix_s: float) -> list[Metric]:
    """Everything that is known at this moment. What is not known is absent."""
    out = Families()
    known = [node for node in state.nodes.values() if node.known(now_unix_s)]
    for node in state.nodes.values():
        out.add("sparkyard_node_up", (node.name,), node.known(now_unix_s))
        out.add("sparkyard_node_connections_total", (node.name,), node.connections)
    _deployment(out, state, now_unix_s)
    for node in known:
        _node(out, node)
        _links(out, node)
    names = {node.name for node in known}
    for node, rank in ranks(state):
        if node.name in names:
            _rank(out, (rank.now.deployment, node.name, str(rank.now.rank)), rank)
    for name, number, ratio in skews(state):
        if name in names:
            out.add("sparkyard_engram_read_skew_ratio", (state.deployment, name, str(number)), ratio)
    _drives(out, known)
    _findings(out, state)
    return list(out)


def _deployment(out: Families, state: State, now_unix_s: float) -> None:
    name = state.deployment
    now = situation(state, now_unix_s)
    for kind in KINDS:
        out.add("sparkyard_deployment_state", (name, kind), kind == now.kind)
    out.add("sparkyard_deployment_generation", (name,), generation(state))
    out.add("sparkyard_boot_progress_ratio", (name,), now.progress)
    out.add("sparkyard_restarts_total", (name,), state.restarts)
    out.add("sparkyard_breaker_open", (name,), state.breaker_open)
    if state.canary is not None:
        out.add("sparkyard_canary_success", (name,), state.canary.ok)
        out.add("sparkyard_canary_seconds", (name,), state.canary.seconds)
    out.add("sparkyard_canary_failures_total", (name,), state.canary.failures if state.canary else 0)


def _node(out: Families, node: NodeView) -> None:
    sample, label = node.sample, (node.name,)
    if sample is None:
        return
    out.add("sparkyard_agent_cpu_seconds_total", label, sample.agent.cpu_s)
    out.add("sparkyard_agent_resident_bytes", label, sample.agent.resident_bytes)
    out.add("sparkyard_memory_floor_bytes", label, node.floor_bytes)
    out.add("sparkyard_memory_margin_bytes", label, node.margin_bytes)
    out.add("sparkyard_gpu_clock_ratio", label, node.clock_ratio)
    baseline = node.clock_baseline_mhz
    out.add("sparkyard_gpu_clock_baseline_hertz", label, None if baseline is None else baseline * 1e6)
    for job in sample.jobs:
        if job.state == "running" and job.total > 0:
            labels = (node.name, job.id, job.kind)
            out.add("sparkyard_job_progress_ratio", labels, min(1.0, job.done / job.total))


def _links(out: Families, node: NodeView) -> None:
    for view in node.links:
        if view.wanted:
            labels = (node.name, view.link.netdev, view.link.cage)
            out.add("sparkyard_link_up", labels, view.link.up)
            out.add("sparkyard_link_peak_bytes_per_second", labels, view.peak_per_s)
    for cage, ups in cages(node).items():
        out.add("sparkyard_link_halves_up", (node.name, cage), sum(ups))
        out.add("sparkyard_link_halves", (node.name, cage), len(ups))
    newest = {(probe.netdev, probe.peer): probe for probe in (node.probed.rails if node.probed else ())}
    for (netdev, peer), probe in newest.items():
        labels = (node.name, netdev, peer)
        out.add("sparkyard_rail_probe_bytes_per_second", labels, probe.gbps * 1e9 / BITS)
        out.add("sparkyard_rail_probe_timestamp_seconds", labels, probe.unix_s)


def _rank(out: Families, labels: tuple[str, str, str], rank: RankView) -> None:
    now = rank.now
    out.add("sparkyard_rank_up", labels, now.alive)
    out.add("sparkyard_rank_phase", (*labels, now.phase), 1)
    for phase, seen in (now.phases or {}).items():
        out.add("sparkyard_rank_phase_timestamp_seconds", (*labels, phase), seen)
    out.add("sparkyard_rank_last_log_timestamp_seconds", labels, now.last_log_unix_s)
    out.add("sparkyard_memory_low_water_bytes", labels, now.memory_low_water_bytes)
    if now.engram is not None:
        out.add("sparkyard_engram_rows_total", labels, now.engram.rows_requested)
        out.add("sparkyard_engram_unique_rows_total", labels, now.engram.rows_unique)
        out.add("sparkyard_engram_cache_hits_total", labels, now.engram.cache_hits)
        out.add("sparkyard_engram_read_bytes_total", labels, now.engram.bytes_read)
        out.add("sparkyard_engram_errors_total", labels, now.engram.errors)
        out.add_histogram("sparkyard_engram_batch_seconds", labels, now.engram)


def _drives(out: Families, known: list[NodeView]) -> None:
    by_drive: dict[str, dict[str, float]] = {}
    for node in known:
        for drive, seconds in node.read_latency_s.items():
            by_drive.setdefault(drive, {})[node.name] = seconds
    for drive, times in by_drive.items():
        middle = median(list(times.values()))
        for name, seconds in times.items():
            if len(times) > 1 and middle:
                out.add("sparkyard_drive_read_skew_ratio", (name, drive), seconds / middle)


def _findings(out: Families, state: State) -> None:
    counted = [finding for finding in state.findings if not finding.ignored]
    for severity in Severity:
        count = sum(finding.severity is severity for finding in counted)
        out.add("sparkyard_findings", (severity.value,), count)
    seen = set()
    for finding in counted:
        labels = (finding.check, finding.node, finding.link, finding.severity.value)
        if labels not in seen:
            seen.add(labels)
            out.add("sparkyard_finding", labels, 1)
