"""The ConnectX-7 itself: functions, cages, twins, speed, PCIe, firmware, cable."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.checks.check import (
    AC_DRAIN,
    FORUM,
    Check,
    E,
    Hit,
    N,
    Node,
    W,
    Yard,
    by_model,
    links_of,
    value,
    version,
)
from orchestrator.model.finding import Confidence

FUNCTIONS = 4  # one card, two PCIe x4 links, two cages
NAMES = frozenset({"enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"})
SPEED_MBPS = 200000  # NVIDIA's own gate is `"200000" in speed`
PCIE_GTS, PCIE_WIDTH = 32.0, 4
FIRMWARE = (28, 45, 4028)  # below: low bandwidth, F/368025 and F/360591
OFFICIAL_BRANCH = (28, 45)
MAX_CARRIER_CHANGES = 20  # since boot; proposal, "a few" are normal
CABLES = ("NJAAKK-N911", "NJAAKK0006", "LMTQF022-SD-R", "NJAAKK-AU06")
PLAYBOOK = "https://github.com/NVIDIA/dgx-spark-playbooks"


def enumerated(node: Node) -> Iterable[Hit]:
    links = links_of(node)
    if links is None:
        return
    functions = node.functions
    cages = {item.cage for item in functions}
    domains = {item.domain for item in functions}
    log = node.log("mlx5")
    removed = [line for line in log if "Cable removal" in line]
    doe = [line for line in log if "DOE" in line]
    if len(functions) == FUNCTIONS:
        return
    shown = f"{len(functions)} PCI functions of 15b3:1021"
    if doe:
        yield Hit(shown, evidence=doe[-1])
    elif removed and len(functions) in (0, 2) and len(domains) != 1 and len(cages) in (0, 1):
        text = f"{shown}; the others were removed because their cage has no cable"
        yield Hit(text, evidence=removed[-1], severity=N, remedy="plug the cable in if one belongs there")
    else:
        yield Hit(shown, evidence=removed[-1] if removed else "")


def names(node: Node) -> Iterable[Hit]:
    odd = [item.netdev for item in node.functions if item.netdev and item.netdev not in NAMES]
    roce = [item.rdma for item in node.functions if item.rdma and item.rdma.startswith("mlx5_")]
    if odd or roce:
        yield Hit(f"other names: {', '.join([*odd, *roce])}")


def twins_up(node: Node) -> Iterable[Hit]:
    for cage in sorted({item.cage for item in node.functions if item.cage}):
        twins = [item for item in node.functions if item.cage == cage]
        up = [item for item in twins if item.up]
        if up and len(up) < len(twins):
            down = [item for item in twins if not item.up]
            state = ", ".join(f"{item.netdev} {item.state or item.operstate}" for item in down)
            yield Hit(f"cage {cage}: {len(up)} of {len(twins)} twins up ({state})", link=cage)


def port_state(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        if item.physical_state == "Polling":
            yield Hit("Polling", link=item.netdev or item.pci)


def rate(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        if item.up and item.speed_mbps is not None and item.speed_mbps < SPEED_MBPS:
            yield Hit(f"{item.speed_mbps} Mb/s", link=item.netdev or item.pci)


def speed_unknown(node: Node) -> Iterable[Hit]:
    for name, said in sorted((value(node.facts.negotiation) or {}).items()):
        text = said.detected or ""
        if re.search(r"no partner|auto-?neg", text, re.IGNORECASE):
            yield Hit(f"link detected: {text}", link=name, evidence=f"Speed: {said.speed}")


def rate40(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        if not item.up and item.rate_gbps == 40:
            yield Hit("rate 40 on a port that is down", link=item.netdev or item.pci)


def pcie(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        slow = item.pcie_gts is not None and item.pcie_gts < PCIE_GTS
        narrow = item.pcie_width is not None and item.pcie_width < PCIE_WIDTH
        if slow or narrow:
            yield Hit(
                f"{item.pcie_gts:g} GT/s x{item.pcie_width}", link=item.netdev or item.pci, evidence=item.pci
            )


def power27w(node: Node) -> Iterable[Hit]:
    lines = [line for line in node.log("mlx5") if "insufficient power" in line]
    if lines:
        yield Hit(f"{len(lines)} lines", evidence=lines[-1])


def aer_fatal(node: Node) -> Iterable[Hit]:
    lines = [line for line in node.log("aer") if re.search(r"uncorrect\w*.*\(fatal\)", line, re.IGNORECASE)]
    if lines:
        yield Hit(f"{len(lines)} fatal PCIe errors since boot", evidence=lines[-1])


def aer_corrected(node: Node) -> Iterable[Hit]:
    lines = [line for line in node.log("aer") if re.search(r"\bcorrected\b", line, re.IGNORECASE)]
    if lines:
        yield Hit(f"{len(lines)} corrected PCIe errors since boot", evidence=lines[-1])


def _firmware(node: Node) -> str | None:
    return min((item.firmware for item in node.functions if item.firmware), key=version, default=None)


def firmware(yard: Yard) -> Iterable[Hit]:
    low: set[str] = set()
    for node in yard.seen:
        found = _firmware(node)
        if found and version(found) < FIRMWARE:
            low.add(node.name)
            yield Hit(found, node=node.name)
    for group in by_model(yard.seen):
        best = max((_firmware(node) or "" for node in group), key=version)
        for node in group:
            found = _firmware(node)
            if found and version(found) < version(best) and node.name not in low:
                yield Hit(f"{found}, another node of this model has {best}", node=node.name)


def firmware_unofficial(node: Node) -> Iterable[Hit]:
    newest = max((item.firmware for item in node.functions if item.firmware), key=version, default=None)
    if newest and version(newest)[:2] > OFFICIAL_BRANCH:
        yield Hit(newest)


def flaps(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        if item.up and (item.carrier_changes or 0) > MAX_CARRIER_CHANGES:
            yield Hit(f"{item.carrier_changes} carrier changes since boot", link=item.netdev or item.pci)


def cable(node: Node) -> Iterable[Hit]:
    plugs = value(node.facts.plugs) or {}
    seen: set[str] = set()
    for item in node.functions:
        plug = plugs.get(item.netdev or "")
        if plug is None or not plug.part or item.cage in seen:
            continue
        if not any(plug.part.startswith(part) for part in CABLES):
            seen.add(item.cage or "")
            good = item.up and (item.speed_mbps or 0) >= SPEED_MBPS
            text = f"{plug.vendor or '?'} {plug.part}"
            tail = ", link at 200 Gb/s" if good else ", link not at 200 Gb/s"
            yield Hit(text + tail, link=item.cage or item.netdev or "", severity=N if good else W)


def hotplug(node: Node) -> Iterable[Hit]:
    links = links_of(node)
    if links is not None and links.hotplug_file:
        yield Hit("/etc/nvidia/cx7-hotplug-enabled exists")


def congestion(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        rising = {
            name: item.deltas.get(name, 0) for name in ("packet_seq_err", "rp_cnp_handled", "out_of_sequence")
        }
        shown = ", ".join(f"{name} +{count}" for name, count in rising.items() if count > 0)
        if shown:
            yield Hit(shown, link=item.netdev or item.pci)


def counters(node: Node) -> Iterable[Hit]:
    for item in node.functions:
        if item.up and item.counters and "port_xmit_data" not in item.counters:
            yield Hit(f"{item.rdma} has no port_xmit_data", link=item.netdev or item.pci)


def bond(node: Node) -> Iterable[Hit]:
    network = value(node.facts.network)
    bonds = network.bonds if network else {}
    for item in node.functions:
        masters = [name for name, members in bonds.items() if item.netdev in members]
        if masters or (item.master and item.master in bonds):
            yield Hit(f"{item.netdev} is in {masters[0] if masters else item.master}", link=item.netdev or "")


CHECKS = (
    Check(
        "cx7.enumerated",
        ("links", "kernel_log"),
        "4 PCI functions, or 2 or 0 when the other cages are empty and were hot-removed",
        "fewer, without a removed cable",
        E,
        f"check the cable; update EC and SoC firmware, then {AC_DRAIN}",
        f"{FORUM}365584 {FORUM}369230 {FORUM}374275 {FORUM}366076",
        each=enumerated,
    ),
    Check(
        "cx7.names",
        ("links",),
        "enp1s0f0np0 enp1s0f1np1 enP2p1s0f0np0 enP2p1s0f1np1 with rocep… devices",
        "other names",
        N,
        "nothing: names are looked up on each node in sysfs",
        "https://github.com/NVIDIA/daqiri/pull/108",
        each=names,
    ),
    Check(
        "cx7.twins_up",
        ("links",),
        "both twins of a cabled cage ACTIVE",
        "one twin of a cage up",
        E,
        "give both twins an entry in netplan and bring the second one up; reseat the cable",
        f"{PLAYBOOK} (connect-two-sparks)",
        each=twins_up,
    ),
    Check(
        "cx7.port_state",
        ("links",),
        "LinkUp, or Disabled in an empty cage",
        "Polling: a plug is there and no partner answers",
        E,
        "reseat both ends; try the other cable",
        "https://github.com/ArgentAIOS/dgx-spark-cluster docs/03",
        each=port_state,
    ),
    Check(
        "cx7.rate",
        ("links",),
        f"{SPEED_MBPS} Mb/s",
        "less on a link that is up",
        E,
        "set the switch port to 200G with autonegotiation off, or replace a 100G cable",
        f"{PLAYBOOK} (switch, 3.1)",
        each=rate,
    ),
    Check(
        "cx7.speed_unknown",
        ("negotiation",),
        "a partner is detected",
        "`No partner detected` or failed autonegotiation",
        E,
        "split or advertise the switch port as 200G-baseCR4",
        f"{PLAYBOOK} (CRS812)",
        each=speed_unknown,
    ),
    Check(
        "cx7.rate40",
        ("links",),
        "a port that is down may say 40 Gb/s",
        "never bad",
        N,
        "nothing: the cage is empty",
        "https://github.com/geerlingguy/sbc-reviews/issues/92",
        each=rate40,
    ),
    Check(
        "cx7.pcie",
        ("links",),
        "32 GT/s x4 for each function",
        "slower or narrower",
        E,
        f"install the maker's BIOS through fwupdmgr, then {AC_DRAIN}",
        "https://github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/pull/35",
        each=pcie,
    ),
    Check(
        "cx7.power27w",
        ("kernel_log",),
        "the line appears on healthy units too",
        "never bad",
        N,
        "nothing: NVIDIA calls the message harmless",
        f"{FORUM}378459",
        each=power27w,
    ),
    Check(
        "cx7.aer_fatal",
        ("kernel_log",),
        "no fatal PCIe error since boot",
        "severity=Uncorrectable (Fatal)",
        E,
        f"stop the engine; {AC_DRAIN}; reseat, update firmware; return the unit if it repeats",
        "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/146",
        each=aer_fatal,
    ),
    Check(
        "cx7.aer_corr",
        ("kernel_log",),
        "none or a few corrected errors",
        "never bad alone: bursts come with hot-plug",
        N,
        "nothing, unless a link is slow as well",
        f"{FORUM}378459",
        each=aer_corrected,
    ),
    Check(
        "cx7.fw",
        ("links",),
        "28.45.4028 or newer, equal on nodes of one model",
        "older, or older than another node of the same model",
        W,
        f"fwupdmgr update on that node, then {AC_DRAIN}",
        f"{FORUM}368025 {FORUM}360591",
        whole=firmware,
    ),
    Check(
        "cx7.fw_unofficial",
        ("links",),
        "28.45.x from the unit's maker",
        "a newer branch, flashed with another tool",
        W,
        "use the maker's capsules only",
        "https://github.com/NVIDIA/aerial-cuda-accelerated-ran/issues/45",
        each=firmware_unofficial,
    ),
    Check(
        "cx7.flaps",
        ("links",),
        f"at most {MAX_CARRIER_CHANGES} carrier changes since boot",
        "more",
        W,
        "reseat the cable at both ends; replace it if it goes on",
        "proposal",
        each=flaps,
        confidence=Confidence.MEDIUM,
    ),
    Check(
        "cx7.cable",
        ("plugs", "links"),
        f"a cable known to work: {', '.join(CABLES)}",
        "another one, on a link that is not at 200 Gb/s",
        W,
        "try one of the known cables",
        f"{FORUM}349775",
        each=cable,
        confidence=Confidence.MEDIUM,
    ),
    Check(
        "cx7.hotplug",
        ("links",),
        "hot-plug of the ConnectX-7 not switched on by hand",
        "/etc/nvidia/cx7-hotplug-enabled exists: pulling a cable removes its devices under a running engine",
        N,
        "remove /etc/nvidia/cx7-hotplug-enabled on nodes whose cables stay, then reboot",
        f"{FORUM}374275",
        each=hotplug,
    ),
    Check(
        "cx7.ecn",
        ("links",),
        "sequence errors and congestion notifications do not rise",
        "packet_seq_err, out_of_sequence or rp_cnp_handled rise",
        W,
        "set up PFC and ECN on the switch for the RoCE traffic class",
        f"{FORUM}378042",
        each=congestion,
        confidence=Confidence.MEDIUM,
    ),
    Check(
        "cx7.counters_src",
        ("links",),
        "RoCE devices have port_xmit_data: the only place where RoCE traffic is counted",
        "missing; network device statistics do not see RoCE",
        N,
        "load mlx5_ib",
        "https://github.com/heitor-mocelin/dgx-spark-research",
        each=counters,
    ),
    Check(
        "cx7.bond",
        ("links", "network"),
        "no bond over ConnectX-7 ports",
        "bonded: at most 112 Gb/s, and RDMA breaks",
        W,
        "take the bond apart and give each twin an address",
        f"{FORUM}350417",
        each=bond,
    ),
)
