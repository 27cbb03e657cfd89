"""What the links really carry: only a load probe can tell."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.checks.check import AC_DRAIN, FORUM, PROBE_MAX_AGE_S, Check, E, Hit, Node, W, Yard, value
from orchestrator.model.finding import Confidence
from orchestrator.model.probes import RdmaProbe

TWIN_GBPS = 85.0  # NVIDIA measures 92.6 to 97.3 on one twin, others 107 to 112; proposal of the catalogue
DEGRADED_GBPS = 25.0  # 8 to 25 is the signature of a card that came up wrongly
SYMMETRY = 0.2
BOTH_GBPS = 175.0  # both twins together: 185 to 190 healthy, 92 to 95 when they share one x4 link
ALLREDUCE_GBPS = 10.0  # GB/s, NVIDIA's warning line for a ring; sockets give 2.1, a single twin 13.6
BOTH = "both"
LAB_BACKEND = "gloo"  # the lab has no GPU: that the collective works is all that it can show


def rdma_of(node: Node, yard: Yard) -> tuple[RdmaProbe, ...]:
    """Fresh RDMA results of a node."""
    probes = value(node.facts.probes)
    found = probes.rdma if probes else ()
    return tuple(item for item in found if yard.now_unix_s - item.unix_s <= PROBE_MAX_AGE_S)


def _direction_name(node: Node, item: RdmaProbe) -> str:
    return f"{node.name} {item.netdev} → {item.peer}"


def bandwidth(node: Node, yard: Yard) -> Iterable[Hit]:
    for item in rdma_of(node, yard):
        if item.netdev != BOTH and item.gbps < TWIN_GBPS:
            degraded = item.gbps <= DEGRADED_GBPS
            yield Hit(
                f"{item.gbps:g} Gb/s, {_direction_name(node, item)}",
                link=item.netdev,
                confidence=Confidence.HIGH if degraded else Confidence.MEDIUM,
                remedy="" if degraded else "about half of a healthy twin: look at cx7.pcie for a narrow link",
            )


def direction(yard: Yard) -> Iterable[Hit]:
    measured = {
        (node.name, item.peer, item.netdev): item.gbps
        for node in yard.seen
        for item in rdma_of(node, yard)
        if item.netdev != BOTH
    }
    for (node, other, netdev), gbps in measured.items():
        back = [rate for (a, b, _), rate in measured.items() if (a, b) == (other, node)]
        if back and gbps < (1 - SYMMETRY) * max(back):
            yield Hit(f"{gbps:g} Gb/s to {other}, {max(back):g} Gb/s back", node=node, link=netdev)


def halved(node: Node, yard: Yard) -> Iterable[Hit]:
    for item in rdma_of(node, yard):
        if item.netdev == BOTH and item.gbps < BOTH_GBPS:
            yield Hit(f"{item.gbps:g} Gb/s with both twins, {_direction_name(node, item)}", link=BOTH)


def allreduce(node: Node, yard: Yard) -> Iterable[Hit]:
    probes = value(node.facts.probes)
    found = probes.allreduce if probes else None
    if found is None or yard.now_unix_s - found.unix_s > PROBE_MAX_AGE_S:
        return
    if not found.ok:
        yield Hit("the all-reduce failed", evidence=found.text[-300:])
    elif found.transport and "socket" in found.transport.lower():
        yield Hit(f"NCCL used {found.transport}", evidence=found.text[-300:])
    elif (
        found.transport != LAB_BACKEND
        and found.gigabytes_per_s is not None
        and found.gigabytes_per_s < ALLREDUCE_GBPS
    ):
        rates = [item.gbps for item in rdma_of(node, yard) if item.netdev != BOTH]
        shown = f"{found.gigabytes_per_s:g} GB/s"
        if rates and min(rates) >= TWIN_GBPS:
            remedy = "the links are sound (RDMA at full speed): use a release tag of NCCL, not a development branch"
            yield Hit(shown, evidence=f"RDMA {min(rates):g} Gb/s", remedy=remedy)
        else:
            yield Hit(shown, confidence=Confidence.MEDIUM)


CHECKS = (
    Check(
        "cx7.bw",
        ("probes", "links"),
        f"ib_write_bw of at least {TWIN_GBPS:g} Gb/s on each twin",
        "8 to 25 Gb/s although the link says 200G",
        E,
        f"on both nodes: {AC_DRAIN}",
        f"{FORUM}373387 {FORUM}383649 {FORUM}371031",
        within=bandwidth,
        deep="rdma",
        needs_peers=True,
    ),
    Check(
        "cx7.bw_dir",
        ("probes", "links"),
        "both directions within 20 %",
        "one direction slow",
        E,
        f"on the slow side: {AC_DRAIN}",
        f"{FORUM}379303",
        whole=direction,
        deep="rdma",
        needs_peers=True,
    ),
    Check(
        "cx7.bw_half",
        ("probes", "links"),
        f"at least {BOTH_GBPS:g} Gb/s with both twins",
        "92 to 98 Gb/s: both streams on one x4 link, or one device named",
        W,
        "name both twins in NCCL_IB_HCA",
        "https://github.com/vroomfondel/dgxarley https://github.com/tonyd2wild/"
        "DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/pull/35",
        within=halved,
        deep="rdma",
        needs_peers=True,
    ),
    Check(
        "nccl.allreduce",
        ("probes",),
        f"a real all-reduce over the IB transport, at least {ALLREDUCE_GBPS:g} GB/s",
        "it fails, falls back to sockets, or is slow",
        E,
        "look at the other findings of these nodes first",
        "https://github.com/NVIDIA/dgx-spark-playbooks/issues/102 "
        "https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/3",
        within=allreduce,
        deep="allreduce",
        needs_peers=True,
    ),
)
