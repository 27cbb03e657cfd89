"""Drives, file systems, NFS."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from orchestrator.checks.addresses import ends_of
from orchestrator.checks.check import FORUM, PROBE_MAX_AGE_S, Check, E, Hit, N, Node, W, Yard, gib, value
from orchestrator.model.finding import Confidence
from orchestrator.model.hardware import Mount
from orchestrator.model.probes import NvmeProbe

LOW_SHARE, NO_SHARE = 0.15, 0.05
USB_MBPS = 5000.0
NFS_READ_BYTES = 1024**2
STRAGGLER_SHARE = 0.5  # of the best node's random reads
DISK_TYPES = frozenset({"ext4", "xfs", "btrfs", "zfs"})


def mount_of(node: Node, path: str) -> Mount | None:
    """The local file system that holds `path`."""
    space = value(node.facts.space)
    holders = [
        mount
        for mount in (space.mounts if space else ())
        if mount.path == "/" or f"{path}/".startswith(mount.path.rstrip("/") + "/")
    ]
    return max(holders, key=lambda mount: len(mount.path), default=None)


def free(node: Node) -> Iterable[Hit]:
    docker = value(node.facts.docker)
    wanted = ["/", *node.paths, *([docker.root] if docker and docker.root else [])]
    seen: set[str] = set()
    for path in wanted:
        mount = mount_of(node, path)
        if mount is None or mount.path in seen or mount.total_bytes == 0:
            continue
        seen.add(mount.path)
        share = mount.free_bytes / mount.total_bytes
        if share < LOW_SHARE:
            shown = f"{mount.path}: {gib(mount.free_bytes)} free, {100 * share:.0f} %"
            yield Hit(shown, link=mount.path, severity=E if share < NO_SHARE else None)


def read_only(node: Node) -> Iterable[Hit]:
    space = value(node.facts.space)
    lines = node.log("disk")
    for mount in space.mounts if space else ():
        if mount.type in DISK_TYPES and "ro" in mount.options:
            yield Hit(
                f"{mount.path} is mounted read-only", link=mount.path, evidence=lines[-1] if lines else ""
            )


def drive_link(node: Node) -> Iterable[Hit]:
    drives = value(node.facts.drives)
    for item in drives.nvme if drives else ():
        slow = (
            item.pcie_gts is not None and item.pcie_max_gts is not None and item.pcie_gts < item.pcie_max_gts
        )
        narrow = None not in (item.pcie_width, item.pcie_max_width) and item.pcie_width != item.pcie_max_width
        if slow or narrow:
            able = f"{item.pcie_max_gts or 0:g} GT/s x{item.pcie_max_width}"
            yield Hit(f"{item.pcie_gts or 0:g} GT/s x{item.pcie_width}, able to {able}", link=item.name)


def smart(node: Node) -> Iterable[Hit]:
    for name, log in sorted((value(node.facts.smart) or {}).items()):
        bad = {key: log.get(key, 0) for key in ("critical_warning", "media_errors") if log.get(key, 0) > 0}
        if bad:
            yield Hit(", ".join(f"{key} {count}" for key, count in bad.items()), link=name)


def drive_errors(node: Node) -> Iterable[Hit]:
    lines = node.log("disk")
    if lines:
        yield Hit(f"{len(lines)} lines since boot", evidence=lines[-1])


def test_image(node: Node) -> Iterable[Hit]:
    space = value(node.facts.space)
    if space is not None and space.test_image_bytes:
        yield Hit(f"/test.img, {gib(space.test_image_bytes)}")


def nvme_of(node: Node, yard: Yard) -> NvmeProbe | None:
    probes = value(node.facts.probes)
    found = probes.nvme if probes else None
    return found if found and yard.now_unix_s - found.unix_s <= PROBE_MAX_AGE_S else None


def slow_drive(yard: Yard) -> Iterable[Hit]:
    measured = {node.name: probe for node in yard.seen if (probe := nvme_of(node, yard))}
    best = max((probe.qd64_iops for probe in measured.values()), default=0.0)
    for name, probe in measured.items():
        if probe.qd64_iops < STRAGGLER_SHARE * best:
            shown = f"{probe.qd64_iops:,.0f} random reads/s at depth 64, the best node {best:,.0f}"
            yield Hit(f"{shown}: expect this node to set the pace", node=name)
    speeds = {
        node.name: max((item.pcie_max_gts or 0 for item in drives.nvme), default=0)
        for node in yard.seen
        if node.name not in measured and (drives := value(node.facts.drives)) and drives.nvme
    }
    fastest = max(speeds.values(), default=0)
    for name, speed in speeds.items():
        if 0 < speed < fastest:
            text = f"a drive for {speed:g} GT/s, others {fastest:g}: the expected straggler"
            yield Hit(text, node=name, severity=N, confidence=Confidence.LOW)


def integrity(node: Node, yard: Yard) -> Iterable[Hit]:
    probe = nvme_of(node, yard)
    if probe is not None and probe.mismatches:
        yield Hit(
            f"{probe.mismatches} blocks of {probe.path} read differently through the page cache",
            link=probe.path,
        )


def usb_speed(node: Node) -> Iterable[Hit]:
    drives = value(node.facts.drives)
    for item in drives.usb if drives else ():
        if item.speed_mbps is not None and item.speed_mbps < USB_MBPS:
            yield Hit(f"{item.product or item.name} at {item.speed_mbps:g} Mb/s", link=item.name)


def nfs_protocol(node: Node) -> Iterable[Hit]:
    nfs = value(node.facts.nfs)
    fast = [end.network for end in ends_of(node)]
    for mount in nfs.mounts if nfs else ():
        try:
            server = ipaddress.IPv4Address(mount.server)
        except ValueError:
            continue
        if fast and not any(server in network for network in fast) and not server.is_loopback:
            yield Hit(f"{mount.path} from {server}: not over the fast links", link=mount.path)


def nfs_options(node: Node) -> Iterable[Hit]:
    nfs = value(node.facts.nfs)
    for mount in nfs.mounts if nfs else ():
        wrong = [] if mount.hard else ["soft"]
        if mount.read_bytes is not None and mount.read_bytes < NFS_READ_BYTES:
            wrong.append(f"rsize {mount.read_bytes}")
        if wrong:
            yield Hit(f"{mount.path}: {', '.join(wrong)}", link=mount.path)


CHECKS = (
    Check(
        "disk.free",
        ("space",),
        "15 % or more free where the system, Docker and sparkyard live",
        "less; below 5 % is an error",
        W,
        "./start.sh prune shows what can go; docker image prune",
        "proposal",
        each=free,
    ),
    Check(
        "disk.ro",
        ("space",),
        "file systems mounted read-write",
        "a local one is read-only: ext4 remounts itself so after an error",
        E,
        "look at the kernel log, then fsck at the next boot",
        f"{FORUM}367605",
        each=read_only,
    ),
    Check(
        "disk.link",
        ("drives",),
        "the NVMe drive's PCIe link at its full speed and width",
        "slower or narrower",
        W,
        "reseat the drive",
        "proposal",
        each=drive_link,
    ),
    Check(
        "disk.smart",
        ("smart",),
        "critical_warning 0, media_errors 0",
        "above 0",
        E,
        "save what is on it and replace the drive",
        "NVMe specification",
        each=smart,
    ),
    Check(
        "disk.errors",
        ("kernel_log",),
        "no I/O error since boot",
        "I/O errors, resets or ext4 errors",
        W,
        "look at disk.smart; replace the drive if it repeats",
        "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/152",
        each=drive_errors,
    ),
    Check(
        "disk.testimg",
        ("space",),
        "no /test.img",
        "a leftover of the factory's test",
        N,
        "delete /test.img: it frees its size",
        f"{FORUM}348942",
        each=test_image,
    ),
    Check(
        "disk.slow",
        ("drives", "probes"),
        "drives of one speed on all nodes",
        "one node much slower: its Engram rows come late and all ranks wait for it",
        W,
        "put the packed tables on a faster drive of that node",
        "measured drives: Samsung PM9E1 (Gen5) and Phison (Gen4, no DRAM)",
        whole=slow_drive,
        needs_peers=True,
    ),
    Check(
        "disk.integrity",
        ("probes",),
        "the same bytes through the page cache and around it",
        "different ones",
        E,
        "do not use this node's data; check memory and drive",
        f"{FORUM}382456",
        within=integrity,
        deep="nvme",
    ),
    Check(
        "usb.speed",
        ("drives",),
        "USB storage at 5000 Mb/s or more",
        "480 Mb/s: attached during the boot",
        W,
        "plug it in again after the boot",
        f"{FORUM}362015",
        each=usb_speed,
    ),
    Check(
        "nfs.proto",
        ("nfs", "links"),
        "mounts over the fast links",
        "over the management network: ten times slower",
        W,
        "mount from the server's address on the fast link",
        f"{FORUM}377551",
        each=nfs_protocol,
    ),
    Check(
        "nfs.opts",
        ("nfs",),
        "hard, rsize 1 MiB",
        "soft mounts turn a pause into corrupt reads; small reads are slow",
        W,
        "mount with hard,rsize=1048576",
        f"{FORUM}378310",
        each=nfs_options,
    ),
)
