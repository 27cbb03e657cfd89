"""Which finding explains which: one cause, one headline. Pure."""

from __future__ import annotations

from typing import Literal

from orchestrator.model.finding import Finding, Severity

Scope = Literal["link", "node", "yard"]

# (effect, cause, how near the two must be). The first cause that is there wins; chains end at their root.
CAUSES: tuple[tuple[str, str, Scope], ...] = (
    ("cx7.enumerated", "fw.parity", "node"),
    ("cx7.enumerated", "cx7.aer_fatal", "node"),
    ("cx7.twins_up", "cx7.port_state", "node"),
    ("cx7.twins_up", "cx7.speed_unknown", "node"),
    ("cx7.port_state", "cx7.speed_unknown", "link"),
    ("cx7.rate", "cx7.cable", "node"),
    ("cx7.gid", "cx7.ipv4", "link"),
    ("cx7.peer", "cx7.twins_up", "yard"),
    ("cx7.peer", "cx7.ipv4", "yard"),
    ("cx7.peer", "cx7.subnet_dup", "yard"),
    ("cx7.peer", "cx7.subnet_same", "yard"),
    ("cx7.peer", "topo.crossed", "yard"),
    ("cx7.peer", "topo.cabling", "yard"),
    ("cx7.jumbo", "cx7.mtu", "yard"),
    ("cx7.jumbo", "cx7.vf_mtu", "yard"),
    ("cx7.bw", "cx7.pcie", "node"),
    ("cx7.bw", "cx7.rate", "node"),
    ("cx7.bw", "cx7.fw", "yard"),
    ("cx7.bw", "cx7.ecn", "yard"),
    ("cx7.bw", "cx7.bw_dir", "link"),
    ("cx7.bw_dir", "cx7.pcie", "node"),
    ("cx7.bw_half", "cx7.pcie", "node"),
    ("cx7.bw_half", "cx7.rate", "node"),
    ("cx7.bw_half", "cx7.fw", "yard"),
    ("cx7.bw_half", "cx7.ecn", "yard"),
    ("cx7.bw_half", "cx7.bw_dir", "node"),
    ("cx7.bw_half", "cx7.bw", "node"),
    ("cx7.ecn", "cx7.flaps", "link"),
    ("nccl.allreduce", "rdma.iova2", "yard"),
    ("nccl.allreduce", "rdma.dev", "yard"),
    ("nccl.allreduce", "rdma.memlock", "yard"),
    ("nccl.allreduce", "nccl.conf", "yard"),
    ("nccl.allreduce", "net.ifname", "yard"),
    ("nccl.allreduce", "cx7.mtu", "yard"),
    ("nccl.allreduce", "cx7.jumbo", "yard"),
    ("nccl.allreduce", "cx7.gid", "yard"),
    ("nccl.allreduce", "cx7.gid_pin", "yard"),
    ("nccl.allreduce", "cx7.ecn", "yard"),
    ("nccl.allreduce", "cx7.fw", "yard"),
    ("nccl.allreduce", "cx7.bw_dir", "yard"),
    ("nccl.allreduce", "cx7.bw", "yard"),
    ("nccl.allreduce", "cx7.bw_half", "yard"),
    ("net.unanswered", "net.ifname", "node"),
    ("net.ifname", "cx7.ipv4", "node"),
    ("net.hostname", "cx7.nm_dhcp", "node"),
    ("nccl.parity", "nccl.conf", "yard"),
    ("nccl.parity", "cx7.gid_pin", "yard"),
    ("nccl.parity", "net.ifname", "yard"),
    ("rdma.iova2", "kernel.bad", "node"),
    ("rdma.iova2", "drm.modeset", "node"),
    ("rdma.iova2", "kernel.cma", "node"),
    ("rdma.iova2", "rdma.memlock", "node"),
    ("kernel.cma", "kernel.bad", "node"),
    ("kernel.equal", "kernel.bad", "yard"),
    ("kernel.taint", "net.wifi", "node"),
    ("kernel.taint", "kernel.bad", "node"),
    ("mem.total", "kernel.bad", "node"),
    ("gpu.present", "kernel.bad", "node"),
    ("gpu.present", "gpu.xid", "node"),
    ("gpu.present", "ota.torn", "node"),
    ("gpu.present", "kernel.modkey", "node"),
    ("gpu.xid", "ota.torn", "node"),
    ("gpu.xid", "fw.failed", "node"),
    ("gpu.driver_equal", "gpu.driver", "yard"),
    ("gpu.latch", "fw.failed", "node"),
    ("gpu.latch", "fw.pd", "node"),
    ("spbm.syspl1", "gpu.latch", "node"),
    ("spbm.prochot", "gpu.latch", "node"),
    ("spbm.prochot", "spbm.syspl1", "node"),
    ("spbm.prochot", "acpi.zone", "node"),
    ("spbm.prochot", "gpu.thermal", "node"),
    ("acpi.zone", "fw.ec", "node"),
    ("gpu.thermal", "fw.ec", "node"),
    ("gpu.thermal", "acpi.zone", "node"),
    ("fw.pd", "fw.failed", "node"),
    ("fw.parity", "fw.failed", "node"),
    ("fw.parity", "fw.pd", "node"),
    ("fw.parity", "fw.ec", "node"),
    ("fw.parity", "ota.version", "yard"),
    ("ota.version", "ota.torn", "yard"),
    ("mem.avail", "gpu.foreign", "node"),
    ("mem.swap", "mem.avail", "node"),
    ("mem.psi", "mem.avail", "node"),
    ("mem.psi", "mem.swap", "node"),
    ("mem.oomkilled", "mem.avail", "node"),
    ("disk.ro", "disk.smart", "node"),
    ("disk.ro", "kernel.taint", "node"),
    ("disk.ro", "disk.errors", "node"),
    ("disk.errors", "disk.smart", "node"),
    ("disk.errors", "kernel.taint", "node"),
    ("disk.slow", "disk.link", "node"),
    ("docker.cdi", "docker.runtime", "node"),
    ("docker.runtime", "docker.daemon", "node"),
    ("topo.cabling", "cx7.enumerated", "yard"),
    ("topo.cabling", "cx7.port_state", "yard"),
    ("topo.cabling", "cx7.twins_up", "yard"),
    ("topo.cabling", "cx7.ipv4", "yard"),
    ("topo.cabling", "cx7.linklocal", "yard"),
    ("topo.cabling", "cx7.subnet_dup", "yard"),
    ("topo.cabling", "cx7.subnet_overlap", "yard"),
    ("topo.cabling", "topo.crossed", "yard"),
)
WEIGHT = {Severity.ERROR: 3, Severity.WARNING: 2, Severity.UNKNOWN: 1, Severity.NOTE: 0}
FAULTS = (Severity.ERROR, Severity.WARNING)


def _near(effect: Finding, cause: Finding, scope: Scope) -> bool:
    match scope:
        case "link":
            shared = set(effect.link.split(", ")) & set(cause.link.split(", "))
            return effect.node == cause.node and bool(shared)
        case "node":
            return effect.node == cause.node
        case "yard":
            return True


def rank(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Fold consequences under their causes; a headline takes the severity of the worst thing that it explains.

    Only errors and warnings explain, and are explained; what is unknown keeps the reason it came with.
    """
    faults = [finding for finding in findings if finding.severity in FAULTS]
    parent: dict[str, str] = {}
    for effect_check, cause_check, scope in CAUSES:
        causes = [finding for finding in faults if finding.check == cause_check]
        if not causes:
            continue
        for effect in faults:
            if effect.check != effect_check or effect.key in parent or effect.because_of:
                continue
            near = [cause for cause in causes if _near(effect, cause, scope)]
            near.sort(key=lambda cause: cause.node != effect.node)
            if near and not _leads_to(near[0].key, effect.key, parent):
                parent[effect.key] = near[0].key
    roots = {key: _root(key, parent) for key in parent}
    worst: dict[str, Severity] = {}
    for finding in faults:
        root = roots.get(finding.key)
        if root is not None and WEIGHT[finding.severity] > WEIGHT[worst.get(root, Severity.NOTE)]:
            worst[root] = finding.severity
    ranked = []
    for finding in findings:
        if finding.severity in FAULTS and finding.key in roots:
            finding = finding.model_copy(update={"because_of": roots[finding.key]})
        elif (
            finding.severity in FAULTS
            and WEIGHT[worst.get(finding.key, Severity.NOTE)] > WEIGHT[finding.severity]
        ):
            finding = finding.model_copy(update={"severity": worst[finding.key]})
        ranked.append(finding)
    return tuple(ranked)


def _root(key: str, parent: dict[str, str]) -> str:
    while key in parent:
        key = parent[key]
    return key


def _leads_to(key: str, goal: str, parent: dict[str, str]) -> bool:
    return _root(key, parent) == goal or key == goal
