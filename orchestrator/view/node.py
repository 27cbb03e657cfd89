"""One node as the views see it: the last sample, rates from the one before, and what it has told earlier. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.model.sample import Drive, EngramNow, GpuNow, Link, Probed, RankNow, Sample
from orchestrator.model.step import Failure
from orchestrator.view.rates import appended, grown, median, quantile, rate

STALE_PACES = 3
STALE_MIN_S = 6.0
"""A node whose last sample is older than three paces, and than this, is not known any more."""
BUSY_PERCENT = 50.0
"""GPU utilisation above which the clock is a clock under load."""
BUSY_READINGS = 5
"""The clock under load is the median of so many readings: one reading between two kernels means nothing."""
PEAK_S = 30.0
"""A link's peak is over this time: two scrapes of Prometheus at its default pace."""
ENGRAM_WINDOW = 30


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link with its rates in bytes per second; None while they are not known."""

    link: Link
    wanted: bool
    """It should be up: it has an address, was up, or the topology has a cable on every cage."""
    sent_per_s: float | None = None
    received_per_s: float | None = None
    peaks: tuple[tuple[float, float], ...] = ()
    history: tuple[float, ...] = ()

    @property
    def peak_per_s(self) -> float | None:
        """Highest rate of the last `PEAK_S` in either direction."""
        return max((value for _, value in self.peaks), default=None)


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank with what its Engram reader did in the last samples."""

    now: RankNow
    window: tuple[tuple[float, EngramNow], ...] = ()
    rows_per_s: float | None = None
    batch_p99_s: float | None = None
    batch_mean_s: float | None = None
    hit_ratio: float | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """Which rank of which start."""
        return (self.now.deployment, self.now.generation, self.now.rank)


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything about one node. `sample` None: it has never answered."""

    name: str
    sample: Sample | None = None
    at_unix_s: float = 0.0
    silent: Failure | None = None
    connections: int = 0
    links: tuple[LinkView, ...] = ()
    ranks: tuple[RankView, ...] = ()
    gpu: GpuNow | None = None
    busy: tuple[float, ...] = ()
    clock_baseline_mhz: float | None = None
    probed: Probed | None = None
    processor_busy: float | None = None
    read_latency_s: Mapping[str, float] = field(default_factory=dict)
    available: tuple[float, ...] = ()

    def known(self, now_unix_s: float) -> bool:
        """Whether its last sample still speaks for it."""
        if self.sample is None or self.silent is not None:
            return False
        return now_unix_s - self.at_unix_s <= max(STALE_PACES * self.sample.every_s, STALE_MIN_S)

    @property
    def clock_ratio(self) -> float | None:
        """Clock under load against the node's own best; None while it is not under load."""
        clock = median(self.busy)
        if clock is None or len(self.busy) < BUSY_READINGS or not self.clock_baseline_mhz:
            return None
        return clock / self.clock_baseline_mhz

    @property
    def floor_bytes(self) -> int | None:
        """The guard's floor, while a rank lives here."""
        floors = [rank.now.memory_floor_bytes for rank in self.ranks if rank.now.alive]
        return max((floor for floor in floors if floor is not None), default=None)

    @property
    def margin_bytes(self) -> int | None:
        """Memory above the floor; None without a floor."""
        if self.sample is None or self.floor_bytes is None:
            return None
        return self.sample.memory.available_bytes - self.floor_bytes


def node_silent(before: NodeView, failure: Failure) -> NodeView:
    """Nothing that moves is carried over a gap: a rate over it would be a lie."""
    still = tuple(replace(link, sent_per_s=None, received_per_s=None, peaks=()) for link in before.links)
    return replace(before, silent=failure, links=still, processor_busy=None, read_latency_s={}, busy=())


def node_after(before: NodeView, sample: Sample, at_unix_s: float, topology: str) -> NodeView:
    """The node after one more sample."""
    last = before.sample
    same = (
        last is not None
        and before.silent is None
        and last.boot_id == sample.boot_id
        and sample.monotonic_s > last.monotonic_s
    )
    seconds = sample.monotonic_s - last.monotonic_s if same and last is not None else 0.0
    gpu = sample.gpu or before.gpu
    busy = before.busy if same else ()
    if sample.gpu is not None:
        loaded = (sample.gpu.utilization_percent or 0.0) >= BUSY_PERCENT and sample.gpu.sm_mhz is not None
        busy = (*busy, sample.gpu.sm_mhz or 0.0)[-BUSY_READINGS:] if loaded else ()
    probed = sample.probes or before.probed
    clock = median(busy) if len(busy) == BUSY_READINGS else None
    baseline = max(
        (
            value
            for value in (before.clock_baseline_mhz, clock, probed.busy_mhz if probed else None)
            if value is not None
        ),
        default=None,
    )
    processor = None
    if same and last is not None:
        spent = sample.processor.busy_s - last.processor.busy_s
        rested = sample.processor.idle_s - last.processor.idle_s
        processor = spent / (spent + rested) if spent >= 0 and spent + rested > 0 else None
    return NodeView(
        before.name,
        sample,
        at_unix_s,
        None,
        before.connections + (last is None or before.silent is not None),
        _links(before, sample, seconds, topology),
        tuple(_rank(before, now, sample.monotonic_s, same) for now in sample.ranks),
        gpu,
        busy,
        baseline,
        probed,
        processor,
        _latencies(last.drives if same and last is not None else (), sample.drives, before.read_latency_s),
        appended(before.available, float(sample.memory.available_bytes)),
    )


def _links(before: NodeView, sample: Sample, seconds: float, topology: str) -> tuple[LinkView, ...]:
    earlier = {view.link.netdev: view for view in before.links}
    found = []
    for link in sample.links:
        was = earlier.pop(link.netdev, None)
        wanted = bool(link.up or link.addresses or topology in {"triangle", "ring"} or (was and was.wanted))
        sent = rate(was.link.sent_bytes, link.sent_bytes, seconds) if was else None
        received = rate(was.link.received_bytes, link.received_bytes, seconds) if was else None
        peaks = tuple(entry for entry in (was.peaks if was else ()) if sample.monotonic_s - entry[0] < PEAK_S)
        if sent is not None and received is not None:
            peaks = (*peaks, (sample.monotonic_s, max(sent, received)))
        total = None if sent is None or received is None else sent + received
        history = appended(was.history if was else (), total)
        found.append(LinkView(link, wanted, sent, received, peaks, history))
    for (
        gone
    ) in earlier.values():  # taken out of the machine while we watch: a hot-removed card leaves nothing
        if gone.wanted:
            lost = gone.link.model_copy(
                update={"up": False, "state": "gone", "sent_bytes": None, "received_bytes": None}
            )
            found.append(LinkView(lost, wanted=True, history=gone.history))
    return tuple(found)


def _rank(before: NodeView, now: RankNow, monotonic_s: float, same: bool) -> RankView:
    key = (now.deployment, now.generation, now.rank)
    was = next((rank for rank in before.ranks if rank.key == key), None) if same else None
    if now.engram is None or not now.alive:
        return RankView(now)
    earlier = was.window if was else ()
    if earlier and now.engram.batches < earlier[-1][1].batches:
        earlier = ()  # the reader was opened again: its counters began anew
    window = (*earlier, (monotonic_s, now.engram))[-ENGRAM_WINDOW:]
    (first_s, first), (last_s, last) = window[0], window[-1]
    batches = last.batches - first.batches
    counts = grown(first.latency, last.latency) if batches else None
    bounds = [bound / 1e6 for bound in last.latency_bounds_us]
    unique = last.rows_unique - first.rows_unique
    return RankView(
        now,
        window,
        rate(first.rows_requested, last.rows_requested, last_s - first_s),
        quantile(bounds, counts, 0.99) if counts else None,
        (last.read_s - first.read_s) / batches if batches else None,
        (last.cache_hits - first.cache_hits) / unique if unique > 0 else None,
    )


def _latencies(
    before: tuple[Drive, ...], after: tuple[Drive, ...], known: Mapping[str, float]
) -> dict[str, float]:
    """Mean seconds a read took on each drive between two samples; a drive without reads keeps its last value."""
    earlier = {drive.name: drive for drive in before}
    found = {}
    for drive in after:
        was = earlier.get(drive.name)
        if was is not None and drive.reads > was.reads and drive.read_s >= was.read_s:
            found[drive.name] = (drive.read_s - was.read_s) / (drive.reads - was.reads)
        elif drive.name in known:
            found[drive.name] = known[drive.name]
    return found
