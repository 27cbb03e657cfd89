"""A node described by pasted command output: text files in a folder, turned into a recording.

File names decide what a file is: `nvidia-smi.txt`, `ibdev2netdev.txt`, `ibstat.txt`, `ethtool*.txt` (one or several
devices), `lspci.txt` (lspci -vv), `ip-addr.txt`, `dmesg.txt`, `meminfo.txt`. Facts that no file speaks of are not in
the capture, and the checks that need them say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from node_agent.facts import gpu
from node_agent.facts.logs import DMESG
from node_agent.facts.network import ADDRESSES
from node_agent.facts.text import lines

Recording = dict[str, Any]
MAX_TEXT_CHARS = 4 * 1024 * 1024
DEVICE = re.compile(r"roce(?:P(\d{1,4}))?p(\d{1,3})s(\d{1,3})f(\d)")
MLX = re.compile(r"mlx5_(\d)")
MLX_FUNCTIONS = ("0000:01:00.0", "0000:01:00.1", "0002:01:00.0", "0002:01:00.1")


def function_of(rdma: str) -> str | None:
    """The PCI function that a predictable RoCE name stands for: `roceP2p1s0f1` → `0002:01:00.1`."""
    found = DEVICE.fullmatch(rdma)
    if found:
        domain, bus, slot, function = (int(part or 0) for part in found.groups())
        return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
    numbered = MLX.fullmatch(rdma)
    if numbered and int(numbered.group(1)) < len(MLX_FUNCTIONS):
        return MLX_FUNCTIONS[int(numbered.group(1))]
    return None


def _function(made: Recording, rdma: str, netdev: str | None = None) -> str | None:
    pci = function_of(rdma)
    if pci is None:
        return None
    folder = f"/sys/bus/pci/devices/{pci}"
    made["files"] |= {f"{folder}/vendor": "0x15b3\n", f"{folder}/device": "0x1021\n"}
    made["links"][f"{folder}/infiniband/{rdma}"] = f"/sys/class/infiniband/{rdma}"
    if netdev:
        made["links"][f"{folder}/net/{netdev}"] = f"/sys/class/net/{netdev}"
        made["files"].setdefault(f"/sys/class/net/{netdev}/operstate", "unknown\n")
    return pci


def ibdev2netdev(made: Recording, text: str) -> None:
    """Lines `rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)`."""
    for item in lines(text):
        found = re.fullmatch(r"\s*(\w{1,32}) port \d+ ==> ([\w.-]{1,32}) \((Up|Down)\)\s*", item)
        if not found:
            continue
        rdma, netdev, state = found.groups()
        if _function(made, rdma, netdev) is None:
            continue
        port, net = f"/sys/class/infiniband/{rdma}/ports/1", f"/sys/class/net/{netdev}"
        made["files"].setdefault(f"{port}/state", "4: ACTIVE\n" if state == "Up" else "1: DOWN\n")
        made["files"][f"{net}/operstate"] = "up\n" if state == "Up" else "down\n"
        made["files"][f"{net}/carrier"] = "1\n" if state == "Up" else "0\n"


def ibstat(made: Recording, text: str) -> None:
    """Blocks of `CA 'name'` with firmware, state, physical state and rate of the port."""
    rdma: str | None = None
    for item in lines(text):
        name = re.match(r"\s*CA '(\w{1,32})'", item)
        if name:
            rdma = name.group(1)
            _function(made, rdma)
            continue
        key, colon, answer = item.partition(":")
        if not rdma or not colon:
            continue
        hca, answer = f"/sys/class/infiniband/{rdma}", answer.strip()[:60]
        match key.strip():
            case "Firmware version":
                made["files"][f"{hca}/fw_ver"] = answer + "\n"
            case "State":
                made["files"][f"{hca}/ports/1/state"] = "4: ACTIVE\n" if answer == "Active" else "1: DOWN\n"
            case "Physical state":
                made["files"][f"{hca}/ports/1/phys_state"] = f"0: {answer}\n"
            case "Rate":
                made["files"][f"{hca}/ports/1/rate"] = f"{answer} Gb/sec\n"
            case _:
                pass


def ethtool(made: Recording, text: str) -> None:
    """One or more blocks of `Settings for DEVICE:`."""
    for block in re.split(r"^Settings for ", text.replace("\r", ""), flags=re.MULTILINE)[1:]:
        netdev, _, rest = block.partition(":")
        if not re.fullmatch(r"[\w.-]{1,32}", netdev):
            continue
        speed = re.search(r"^\s*Speed: (\d{1,7})Mb/s", rest, re.MULTILINE)
        made["files"][f"/sys/class/net/{netdev}/speed"] = f"{speed.group(1)}\n" if speed else "-1\n"
        made["commands"][f"ethtool {netdev}"] = f"Settings for {netdev}:{rest}"


def lspci(made: Recording, text: str) -> None:
    """`lspci -vv`: link capability and state of the ConnectX-7's functions."""
    pci: str | None = None
    for item in lines(text):
        head = re.match(r"(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)", item)
        if head:
            domain, place, what = head.groups()
            known = re.search(r"Mellanox.*(?:MT2910|ConnectX-7)|15b3:1021", what)
            pci = f"{domain or '0000'}:{place}" if known else None
        link = re.search(r"Lnk(Cap|Sta):.*?Speed ([\d.]{1,6})GT/s.*?Width x(\d{1,2})", item)
        if pci and link:
            folder, kind = f"/sys/bus/pci/devices/{pci}", "max" if link.group(1) == "Cap" else "current"
            made["files"] |= {
                f"{folder}/vendor": "0x15b3\n",
                f"{folder}/device": "0x1021\n",
                f"{folder}/{kind}_link_speed": f"{link.group(2)} GT/s PCIe\n",
                f"{folder}/{kind}_link_width": f"{link.group(3)}\n",
            }


def ip_addr(made: Recording, text: str) -> None:
    """`ip addr` as people read it."""
    rows: list[dict[str, Any]] = []
    for item in lines(text):
        head = re.match(r"\d{1,5}: ([\w.-]{1,32})(?:@\S+)?: <([^>]*)>.* mtu (\d{1,6})", item)
        if head:
            name, flags, mtu = head.groups()
            state = "UP" if "LOWER_UP" in flags.split(",") else "DOWN"
            rows.append({"ifname": name, "mtu": int(mtu), "operstate": state, "addr_info": []})
            made["files"][f"/sys/class/net/{name}/mtu"] = f"{mtu}\n"
            continue
        address = re.match(r"\s+inet6? ([0-9a-fA-F.:]{2,45})/(\d{1,3})", item)
        if address and rows:
            rows[-1]["addr_info"].append({"local": address.group(1), "prefixlen": int(address.group(2))})
    made["commands"][" ".join(ADDRESSES)] = json.dumps(rows)


def nvidia_smi(made: Recording, text: str) -> None:
    """The table of plain `nvidia-smi`, or rows of the query that the reader itself uses."""
    query = " ".join(gpu.QUERY)
    if gpu.parse_devices(text) or not re.search(r"\|\s+\d+\s+NVIDIA", text):
        made["commands"][query] = {"status": 0, "out": text, "err": ""}
        return
    driver = re.search(r"Driver Version: ([\d.]{3,20})", text)
    rows = []
    name = re.compile(r"\|\s+(\d{1,2})\s+(NVIDIA [^|]{1,40}?)\s+(?:On|Off)\s+\|\s+(\S+)")
    state = re.compile(r"\|\s+\S+\s+(\d{1,3})C\s+(P\d+)\s+(\d+)W\s*/\s*\S+\s*\|[^|]*\|\s+(\d{1,3})%")
    found: tuple[str, ...] | None = None
    for item in lines(text):
        head, second = name.search(item), state.search(item)
        if head:
            found = head.groups()
        elif found and second:
            heat, pstate, watts, busy = second.groups()
            version = driver.group(1) if driver else "[N/A]"
            rows.append(
                f"{found[0]}, {found[1]}, [N/A], {version}, {found[2]}, {heat}, {watts} W, {busy} %, [N/A], [N/A], "
                f"{pstate}, [N/A], [N/A], [N/A]"
            )
            found = None
    made["commands"][query] = {"status": 0, "out": "\n".join(rows) or text, "err": ""}


def dmesg(made: Recording, text: str) -> None:
    """`dmesg`, or `journalctl -k`."""
    made["commands"][" ".join(DMESG)] = text


def meminfo(made: Recording, text: str) -> None:
    """/proc/meminfo."""
    made["files"]["/proc/meminfo"] = text


LINKS = ("links", "network", "negotiation")
KINDS: tuple[tuple[str, Callable[[Recording, str], None], tuple[str, ...]], ...] = (
    ("ibdev2netdev", ibdev2netdev, ("links",)),
    ("ibstat", ibstat, ("links",)),
    ("ethtool", ethtool, ("links", "negotiation")),
    ("lspci", lspci, ("links",)),
    ("ip-addr", ip_addr, ("links", "network")),
    ("ip_addr", ip_addr, ("links", "network")),
    ("nvidia-smi", nvidia_smi, ("gpu",)),
    ("dmesg", dmesg, ("kernel_log",)),
    ("meminfo", meminfo, ("memory",)),
)


def recording_of(texts: Mapping[str, str]) -> tuple[Recording, tuple[str, ...], tuple[str, ...]]:
    """Turn pasted files into a recording.

    Args:
        texts: file name → its text.

    Returns the recording, the facts that it can speak of, and the files that were not understood.
    """
    made: Recording = {"files": {}, "links": {}, "commands": {}}
    facts: list[str] = []
    unknown = []
    # ibdev2netdev first: the others add to the devices that it names.
    order = {prefix: place for place, (prefix, _, _) in enumerate(KINDS)}
    known: list[tuple[int, str, Callable[[Recording, str], None], tuple[str, ...]]] = []
    for name, text in sorted(texts.items()):
        for prefix, turn, told in KINDS:
            if name.lower().startswith(prefix):
                known.append((order[prefix], text[:MAX_TEXT_CHARS], turn, told))
                break
        else:
            unknown.append(name)
    for _, text, turn, told in sorted(known, key=lambda row: row[0]):
        turn(made, text)
        facts += told
    return made, tuple(dict.fromkeys(facts)), tuple(unknown)
