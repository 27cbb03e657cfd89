"""Results of load probes."""

from __future__ import annotations

from pydantic import Field

from orchestrator.model.bounded import Count, Short, Text
from orchestrator.model.frozen import Frozen


class BurnSample(Frozen):
    """The GPU at one moment of a compute burn."""

    at_s: float
    sm_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization_percent: float | None = None
    reasons: Count | None = None


class BurnProbe(Frozen):
    """A compute-bound load on the GPU."""

    unix_s: float
    seconds: float
    tflops: float | None = None
    samples: tuple[BurnSample, ...] = Field(default=(), max_length=1000)


class GemvProbe(Frozen):
    """Small matrix-vector products, one bandwidth for each second."""

    unix_s: float
    gigabytes_per_s: tuple[float, ...] = Field(default=(), max_length=1000)
    copy_gigabytes_per_s: float | None = None


class RdmaProbe(Frozen):
    """`ib_write_bw` from this node. `netdev` is `both` when the twins ran together."""

    unix_s: float
    netdev: Short
    peer: Short
    gbps: float


class NvmeProbe(Frozen):
    """Random direct reads of 4 KiB."""

    unix_s: float
    path: Text
    qd1_iops: float
    qd1_p99_us: float
    qd64_iops: float
    sequential_gigabytes_per_s: float | None = None
    mismatches: Count | None = None
    """Blocks that read differently through the page cache and around it."""


class AllReduceProbe(Frozen):
    """A real NCCL all-reduce."""

    unix_s: float
    ok: bool
    gigabytes_per_s: float | None = None
    transport: Short | None = None
    text: Text = ""


class Probes(Frozen):
    """Results of earlier load probes; None: not run."""

    burn: BurnProbe | None = None
    gemv: GemvProbe | None = None
    nvme: NvmeProbe | None = None
    rdma: tuple[RdmaProbe, ...] = Field(default=(), max_length=500)
    allreduce: AllReduceProbe | None = None
    missing: dict[Short, Short] = Field(default_factory=dict, max_length=50)
    """Probe → why it could not run here."""
