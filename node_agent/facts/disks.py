"""File systems, NVMe drives, USB devices."""

from __future__ import annotations

from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source
from node_agent.facts.text import line, lines, number, whole

MOUNTS = "/proc/self/mounts"
LOCAL_TYPES = frozenset({"ext4", "xfs", "btrfs", "overlay", "zfs", "ext3", "f2fs", "tmpfs"})
SKIPPED_PLACES = ("/snap/", "/run/", "/dev", "/sys", "/proc", "/boot/efi")
TEST_IMAGE = "/test.img"
MAX_MOUNTS = 100


def _unescaped(text: str) -> str:
    """/proc/mounts writes a space as \\040."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def parse_mounts(text: str) -> list[dict[str, Any]]:
    """Lines of /proc/mounts: device, path, type, options."""
    found = []
    for item in lines(text):
        parts = item.split(" ")
        if len(parts) >= 4 and parts[1].startswith("/"):
            found.append(
                {
                    "device": _unescaped(parts[0])[:300],
                    "path": _unescaped(parts[1])[:1000],
                    "type": parts[2][:40],
                    "options": parts[3].split(",")[:60],
                }
            )
    return found


def read_nvme(source: Source) -> list[dict[str, Any]]:
    """Every NVMe controller with its PCIe link."""
    found = []
    for name in source.names("/sys/class/nvme"):
        folder = f"/sys/class/nvme/{name}"
        found.append(
            {
                "name": name,
                "model": line(source.text(f"{folder}/model")),
                "firmware": line(source.text(f"{folder}/firmware_rev")),
                "state": line(source.text(f"{folder}/state")),
                "pcie_gts": number(
                    (source.text(f"{folder}/device/current_link_speed") or "").partition(" ")[0]
                ),
                "pcie_max_gts": number(
                    (source.text(f"{folder}/device/max_link_speed") or "").partition(" ")[0]
                ),
                "pcie_width": whole(source.text(f"{folder}/device/current_link_width")),
                "pcie_max_width": whole(source.text(f"{folder}/device/max_link_width")),
            }
        )
    return found


def read_usb(source: Source) -> list[dict[str, Any]]:
    """USB devices that are storage (interface class 08), with the speed that they negotiated."""
    found = []
    root = "/sys/bus/usb/devices"
    names = source.names(root)
    for name in names:
        if ":" in name or not name[:1].isdigit():
            continue
        classes = [
            line(source.text(f"{root}/{other}/bInterfaceClass"))
            for other in names
            if other.startswith(name + ":")
        ]
        if "08" in classes:
            found.append(
                {
                    "name": name,
                    "product": line(source.text(f"{root}/{name}/product")),
                    "speed_mbps": number(source.text(f"{root}/{name}/speed")),
                }
            )
    return found


def read_mounts(source: Source) -> list[dict[str, Any]]:
    """Local file systems with their space. Network mounts are left out: asking a dead server would hang."""
    found = []
    for mount in parse_mounts(source.text(MOUNTS) or "")[: 4 * MAX_MOUNTS]:
        path = mount["path"]
        if mount["type"] not in LOCAL_TYPES or (path != "/" and f"{path}/".startswith(SKIPPED_PLACES)):
            continue
        space = source.space(path)
        if space and space[0] > 0:
            found.append({**mount, "total_bytes": space[0], "free_bytes": space[1]})
    return found[:MAX_MOUNTS]


def read_space(source: Source) -> dict[str, Any]:
    """What changes from moment to moment."""
    return {"mounts": read_mounts(source), "test_image_bytes": source.size(TEST_IMAGE)}


def read_drives(source: Source) -> dict[str, Any]:
    """What belongs to the machine."""
    return {"nvme": read_nvme(source), "usb": read_usb(source)}


SPACE = Reader("space", read_space, hardware=False)
DRIVES = Reader("drives", read_drives)
