"""Healthy GB10 nodes as recordings, built from published names and values. Synthetic: no machine was read.

Host names, serial numbers, MAC addresses and addresses are invented. `python -m tests.nodes.gb10` rewrites the
recordings that the lab uses; a test compares them with what this file makes.
"""
# ruff: noqa: E501 - recorded lines are as long as the tools write them

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Recording = dict[str, Any]
Model = Literal["fe", "asus", "dell"]
Wiring = Literal["triangle", "ring", "switch", "alone"]
AROUND = {"triangle": 3, "ring": 4}  # nodes of a layout in which each has a cable to its two neighbours

LAB = Path("orchestrator/lab/recorded")
KIB_TOTAL = 127600748  # MemTotal of an up-to-date Founders Edition
FUNCTIONS = (  # PCI function, network device, RoCE device, cage, x4 link of the card
    ("0000:01:00.0", "enp1s0f0np0", "rocep1s0f0", "p0", 0),
    ("0000:01:00.1", "enp1s0f1np1", "rocep1s0f1", "p1", 0),
    ("0002:01:00.0", "enP2p1s0f0np0", "roceP2p1s0f0", "p0", 1),
    ("0002:01:00.1", "enP2p1s0f1np1", "roceP2p1s0f1", "p1", 1),
)
MODELS: dict[Model, dict[str, str]] = {
    "fe": {
        "sys_vendor": "NVIDIA",
        "product_name": "NVIDIA_DGX_Spark",
        "product_version": "A.7",
        "board_name": "P4242",
        "bios_version": "5.36_0ACUM027",
        "bios_date": "05/12/2026",
        "ec": "0x03000508",
        "soc": "0x02009b0b",
        "pd": "0x516",
        "ota": "7.6.0",
        "drive": "SAMSUNG MZALC4T0HBL1-00B07",
        "drive_firmware": "NXHB202Q",
        "drive_gts": "32.0",
        "driver": "580.173.02",
        "kernel": "6.17.0-1032-nvidia",
    },
    "asus": {
        "sys_vendor": "ASUSTeK COMPUTER INC.",
        "product_name": "GX10",
        "product_version": "5.36_GX10DGX",
        "board_name": "GX10",
        "bios_version": "GX10DGX.0104.2026.0326.1657",
        "bios_date": "03/26/2026",
        "ec": "0x02004e18",
        "soc": "0x0200980f",
        "pd": "0x507",
        "ota": "7.5.0",
        "drive": "ESL01TBTLCZ-27J2-TYN",
        "drive_firmware": "ERFM12.0",
        "drive_gts": "16.0",
        "driver": "580.173.02",
        "kernel": "6.17.0-1032-nvidia",
    },
    "dell": {
        "sys_vendor": "Dell Inc.",
        "product_name": "Dell Pro Max with GB10 FCM1253",
        "product_version": "",
        "board_name": "0FCM12",
        "bios_version": "5.36_4.0.0",
        "bios_date": "06/03/2026",
        "ec": "0x02000b00",
        "soc": "0x02009b0b",
        "pd": "0x516",
        "ota": "7.6.0",
        "drive": "SAMSUNG MZALC4T0HBL1-00B07",
        "drive_firmware": "NXHB202Q",
        "drive_gts": "32.0",
        "driver": "580.173.02",
        "kernel": "6.17.0-1032-nvidia",
    },
}


@dataclass(frozen=True)
class Unit:
    """Which node is made. `number` counts from 1; `removed` lists cages whose functions are hot-removed."""

    number: int
    model: Model = "fe"
    wiring: Wiring = "triangle"
    removed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"spark-{self.number}"


def addresses(unit: Unit) -> dict[str, str]:
    """Network device → address/prefix. The triangle has cables 1p0-2p1, 2p0-3p1, 3p0-1p1, one /24 for each half."""
    found = {}
    for _, netdev, _, cage, half in FUNCTIONS:
        if unit.wiring == "switch" and cage == "p0":
            found[netdev] = f"192.168.{100 + half}.{unit.number}/24"
        if unit.wiring in AROUND:
            cable = cable_number(unit, cage)
            end = 1 if cage == "p0" else 2
            found[netdev] = f"192.168.{2 * (cable - 1) + half}.{end}/24"
    return found


def _gid(address: str) -> str:
    a, b, c, d = (int(part) for part in address.partition("/")[0].split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def mac(unit: Unit, index: int) -> str:
    return f"02:00:5e:00:{unit.number:02x}:{index:02x}"


def _links(unit: Unit, node: Recording) -> None:
    files, links = node["files"], node["links"]
    given = addresses(unit)
    devinfo = []
    for index, (pci, netdev, rdma, cage, _) in enumerate(FUNCTIONS):
        if cage in unit.removed:
            continue
        cabled = netdev in given
        folder, net, hca = (
            f"/sys/bus/pci/devices/{pci}",
            f"/sys/class/net/{netdev}",
            f"/sys/class/infiniband/{rdma}",
        )
        links[f"{folder}/net/{netdev}"] = net
        links[f"{folder}/infiniband/{rdma}"] = hca
        links[f"{folder}/driver"] = "/sys/bus/pci/drivers/mlx5_core"
        links[f"{net}/device"] = folder
        files |= {
            f"{folder}/vendor": "0x15b3\n",
            f"{folder}/device": "0x1021\n",
            f"{folder}/current_link_speed": "32.0 GT/s PCIe\n",
            f"{folder}/max_link_speed": "32.0 GT/s PCIe\n",
            f"{folder}/current_link_width": "4\n",
            f"{folder}/max_link_width": "4\n",
            f"{net}/phys_port_name": f"{cage}\n",
            f"{net}/phys_switch_id": f"{unit.number:02x}00000000005e02\n",
            f"{net}/operstate": "up\n" if cabled else "down\n",
            f"{net}/carrier": "1\n" if cabled else "0\n",
            f"{net}/carrier_changes": "2\n" if cabled else "1\n",
            f"{net}/speed": "200000\n" if cabled else "-1\n",
            f"{net}/mtu": "9000\n" if cabled else "1500\n",
            f"{net}/address": mac(unit, index) + "\n",
            f"{hca}/fw_ver": "28.45.4028\n",
            f"{hca}/ports/1/state": "4: ACTIVE\n" if cabled else "1: DOWN\n",
            f"{hca}/ports/1/phys_state": "5: LinkUp\n" if cabled else "3: Disabled\n",
            f"{hca}/ports/1/rate": "200 Gb/sec (4X HDR)\n" if cabled else "40 Gb/sec (4X QDR)\n",
            f"{hca}/ports/1/link_layer": "Ethernet\n",
            f"{hca}/ports/1/gids/0": f"fe80:0000:0000:0000:0000:5eff:fe00:{unit.number:02x}{index:02x}\n",
            f"{hca}/ports/1/gid_attrs/types/0": "IB/RoCE v1\n",
            f"{hca}/ports/1/gid_attrs/ndevs/0": f"{netdev}\n",
        }
        for counter in ("port_xmit_data", "port_rcv_data"):
            files[f"{hca}/ports/1/counters/{counter}"] = "81234567\n"
        for counter in ("symbol_error", "link_downed", "port_rcv_errors"):
            files[f"{hca}/ports/1/counters/{counter}"] = "0\n"
        for counter in (
            "packet_seq_err",
            "out_of_sequence",
            "local_ack_timeout_err",
            "rp_cnp_handled",
            "np_cnp_sent",
        ):
            files[f"{hca}/ports/1/hw_counters/{counter}"] = "0\n"
        if cabled:
            for slot, kind in ((2, "IB/RoCE v1"), (3, "RoCE v2")):
                files[f"{hca}/ports/1/gids/{slot}"] = _gid(given[netdev]) + "\n"
                files[f"{hca}/ports/1/gid_attrs/types/{slot}"] = f"{kind}\n"
                files[f"{hca}/ports/1/gid_attrs/ndevs/{slot}"] = f"{netdev}\n"
            node["commands"][f"ethtool -m {netdev}"] = [
                "\tIdentifier                                : 0x11 (QSFP28)",
                "\tVendor name                               : Amphenol",
                "\tVendor PN                                 : NJAAKK-N911",
                f"\tVendor SN                                 : {cable_serial(unit, cage)}",
            ]
        else:
            missing = {"status": 1, "out": "", "err": "netlink error: Input/output error\n"}
            node["commands"][f"ethtool -m {netdev}"] = missing
        node["commands"][f"ethtool {netdev}"] = [
            f"Settings for {netdev}:",
            f"\tSpeed: {'200000Mb/s' if cabled else 'Unknown!'}",
            f"\tLink detected: {'yes' if cabled else 'no'}",
        ]
        files[f"/dev/infiniband/uverbs{index}"] = ""
        devinfo += [
            f"hca_id:\t{rdma}",
            "\ttransport:\t\t\tInfiniBand (0)",
            "\t\tport:\t1",
            f"\t\t\tstate:\t\t\tPORT_{'ACTIVE' if cabled else 'DOWN'} ({4 if cabled else 1})",
            "\t\t\tmax_mtu:\t\t4096 (5)",
            f"\t\t\tactive_mtu:\t\t{4096 if cabled else 1024} ({5 if cabled else 3})",
        ]
    files["/dev/infiniband/rdma_cm"] = ""
    files["/sys/bus/platform/drivers/cx7-pcie-hotplug/MTKP0001:00/pcie_hotplug/hotplug_enabled"] = (
        "1\n" if unit.removed else "0\n"
    )
    node["commands"]["ibv_devinfo"] = devinfo


def cable_number(unit: Unit, cage: str) -> int:
    """Cable n leads from p0 of node n to p1 of the next node."""
    return unit.number if cage == "p0" else (unit.number - 2) % AROUND[unit.wiring] + 1


def cable_serial(unit: Unit, cage: str) -> str:
    """The same at both ends of a cable."""
    if unit.wiring in AROUND:
        return f"SYN{cable_number(unit, cage):05d}"
    return f"SYN1{unit.number:04d}"


def _network(unit: Unit, node: Recording) -> None:
    given = addresses(unit)
    rows = [
        _interface("lo", 65536, ["127.0.0.1/8"], "unknown"),
        _interface("enP7s7", 1500, [f"10.0.0.{10 + unit.number}/24"]),
        _interface("wlP9s9", 1500, [], "down"),
    ]
    routes: list[dict[str, Any]] = [
        {"dst": "default", "gateway": "10.0.0.1", "dev": "enP7s7", "metric": 100},
        {"dst": "10.0.0.0/24", "dev": "enP7s7"},
    ]
    for _, netdev, _, cage, _ in FUNCTIONS:
        if cage in unit.removed:
            continue
        own = [given[netdev]] if netdev in given else []
        rows.append(_interface(netdev, 9000 if own else 1500, own, "up" if own else "down"))
        if own:
            routes.append({"dst": own[0].rpartition(".")[0] + ".0/24", "dev": netdev})
    node["commands"] |= {
        "ip -j address show": json.dumps(rows),
        "ip -j -4 route show": json.dumps(routes),
        "ip -j -4 neigh show": json.dumps([{"dst": "10.0.0.1", "dev": "enP7s7", "state": ["REACHABLE"]}]),
        "ss -tnH state syn-sent": "",
        "iptables -w 2 -S": ["-P INPUT ACCEPT", "-P FORWARD DROP", "-P OUTPUT ACCEPT", "-N DOCKER-USER"],
    }
    if unit.wiring == "ring":
        node["commands"]["iptables -w 2 -S"] += ["-A DOCKER-USER -i enp1s0f0np0 -o enp1s0f1np1 -j ACCEPT"]
    node["files"]["/proc/sys/net/ipv4/ip_forward"] = "1\n"
    node["links"] |= {
        "/sys/class/net/enP7s7/device/driver": "/sys/bus/pci/drivers/r8127",
        "/sys/class/net/wlP9s9/device/driver": "/sys/bus/pci/drivers/mt7925e",
    }
    node["files"]["/sys/class/net/wlP9s9/wireless/status"] = ""
    if given:
        node["files"]["/etc/netplan/40-cx7.yaml"] = ["network:", "  version: 2", "  ethernets:"] + [
            line
            for netdev, address in given.items()
            for line in (f"    {netdev}:", f"      addresses: [{address}]", "      mtu: 9000")
        ]
        node["modes"]["/etc/netplan/40-cx7.yaml"] = "600"


def _interface(name: str, mtu: int, own: list[str], state: str = "up") -> dict[str, Any]:
    rows = [
        {"family": "inet", "local": item.split("/")[0], "prefixlen": int(item.split("/")[1])} for item in own
    ]
    return {"ifname": name, "mtu": mtu, "operstate": state.upper(), "addr_info": rows}


def _gpu(unit: Unit, node: Recording, driver: str) -> None:
    from node_agent.facts import gpu

    uuid = f"GPU-{unit.number:08d}-0000-4000-8000-00000000005e"
    row = f"0, NVIDIA GB10, {uuid}, {driver}, 0000000F:01:00.0, 36, 3.41 W, 0 %, 208 MHz, 3003 MHz, P8, [N/A], 1, 1"
    node["commands"] |= {
        " ".join(gpu.QUERY): [row],
        " ".join(gpu.REASONS): ["0, 0x0000000000000001"],
        " ".join(gpu.APPS): "",
    }


def _firmware(parts: dict[str, str], node: Recording) -> None:
    rows = [
        ("Embedded Controller", parts["ec"]),
        ("UEFI Device Firmware", parts["soc"]),
        ("USB-C Power Delivery Controller", parts["pd"]),
    ]
    devices = [{"Name": name, "Version": version, "Vendor": parts["sys_vendor"]} for name, version in rows]
    node["commands"] |= {
        "fwupdmgr get-devices --json": json.dumps({"Devices": devices}),
        "fwupdmgr get-history --json": json.dumps({"Devices": []}),
    }


def _kernel(unit: Unit, parts: dict[str, str], node: Recording) -> None:
    release = parts["kernel"]
    node["files"] |= {
        "/proc/sys/kernel/osrelease": release + "\n",
        "/proc/sys/kernel/hostname": unit.name + "\n",
        "/proc/sys/kernel/tainted": "4096\n",
        "/proc/sys/kernel/random/boot_id": f"{unit.number:08d}-1111-4111-8111-111111111111\n",
        "/proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{release} root=UUID=00000000-0000-4000-8000-00000000005e ro quiet\n",
        "/proc/modules": [
            f"{name} 1 0 - Live 0x0" for name in ("nvidia", "nvidia_drm", "mlx5_core", "r8127", "mt7925e")
        ],
        "/proc/sys/vm/swappiness": "10\n",
        "/proc/sys/vm/min_free_kbytes": "45056\n",
        "/proc/sys/net/ipv4/conf/all/arp_ignore": "1\n",
        "/proc/sys/net/ipv4/conf/all/arp_announce": "2\n",
        "/proc/sys/kernel/dmesg_restrict": "1\n",
        "/sys/module/nvidia_drm/parameters/modeset": "Y\n",
        f"/boot/vmlinuz-{release}": "",
        f"/boot/initrd.img-{release}": "",
        "/etc/machine-id": f"{unit.number:032x}\n",
        "/etc/ssh/ssh_host_ed25519_key.pub": f"ssh-ed25519 {_base64(unit.number)} root@{unit.name}\n",
        "/etc/passwd": "root:x:0:0::/root:/bin/bash\nspark:x:1000:1000::/home/spark:/bin/bash\n",
        "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
        "/etc/dgx-release": [
            'DGX_NAME="DGX Spark"',
            'DGX_PRETTY_NAME="NVIDIA DGX Spark"',
            'DGX_SWBUILD_VERSION="7.2.3"',
            'DGX_OTA_VERSION="7.3.1"',
            f'DGX_OTA_VERSION="{parts["ota"]}"',
        ],
        "/opt/nvidia/spark-ota-check/check_ota_status.py": "",
    }
    node["sizes"]["/opt/nvidia/spark-ota-check/check_ota_status.py"] = 9000
    boot = "2026-11-20T08:00:01+00:00"
    power = "Detected insufficient power on the PCIe slot (27W)."
    removed = (
        [f"{boot} {unit.name} kernel: cx7-pcie-hotplug MTKP0001:00: Cable removal"] if unit.removed else []
    )
    node["commands"] |= {
        "python3 /opt/nvidia/spark-ota-check/check_ota_status.py": ["torn score: 0"],
        "dpkg --audit": "",
        "id -nG": "spark adm sudo docker\n",
        "id -un": "spark\n",
        "timedatectl show": ["Timezone=UTC", "NTP=yes", "NTPSynchronized=yes"],
        "journalctl -k -b -o short-iso --no-pager -n 20000": [
            f"{boot} {unit.name} kernel: Linux version {release}",
            *(f"{boot} {unit.name} kernel: mlx5_pcie_event:{pci}: {power}" for pci, *_ in FUNCTIONS),
            *removed,
        ],
        "journalctl -b -1 -n 80 -o short-iso --no-pager": [
            f"2026-11-20T07:58:40+00:00 {unit.name} systemd[1]: Reached target reboot.target - System Reboot.",
            f"2026-11-20T07:58:41+00:00 {unit.name} systemd[1]: Shutting down.",
        ],
        "journalctl -b -u NetworkManager -u avahi-daemon -n 2000 -o cat --no-pager": [
            f"Server startup complete. Host name is {unit.name}.local. Local service cookie is 1."
        ],
    }


def _base64(number: int) -> str:
    import base64

    return base64.b64encode(f"synthetic host key of node {number}".encode()).decode()


def _moment(unit: Unit, node: Recording) -> None:
    available = KIB_TOTAL - 6_500_000 - unit.number * 1000
    node["files"] |= {
        "/proc/meminfo": [
            f"MemTotal:       {KIB_TOTAL} kB",
            f"MemFree:        {available - 4_000_000} kB",
            f"MemAvailable:   {available} kB",
            "Cached:          3800000 kB",
            "Shmem:             60000 kB",
            "SwapTotal:      16777212 kB",
            "SwapFree:       16777212 kB",
            "CmaTotal:         524288 kB",
            "CmaFree:          500000 kB",
        ],
        "/proc/pressure/memory": [
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=0",
        ],
        "/proc/buddyinfo": [
            "Node 0, zone   Normal   400  300  200  150  120  100   80   60   40   30  26000"
        ],
        "/proc/uptime": "784000.10 15000000.00\n",
        "/proc/loadavg": "0.10 0.12 0.09 1/800 4242\n",
        "/proc/cpuinfo": "".join(f"processor\t: {cpu}\n\n" for cpu in range(20)),
        "/proc/net/tcp": [
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
            "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0",
        ],
        "/proc/self/mounts": [
            "/dev/nvme0n1p2 / ext4 rw,relatime,errors=remount-ro 0 0",
            "/dev/nvme0n1p1 /boot/efi vfat rw,relatime 0 0",
        ],
    }
    node["spaces"]["/"] = [3_936_000_000_000, 2_100_000_000_000]


def _machine(parts: dict[str, str], node: Recording) -> None:
    files = node["files"]
    for name in ("sys_vendor", "product_name", "product_version", "board_name", "bios_version", "bios_date"):
        files[f"/sys/class/dmi/id/{name}"] = parts[name] + "\n"
    for zone in range(7):
        files[f"/sys/class/thermal/thermal_zone{zone}/type"] = "acpitz\n"
        files[f"/sys/class/thermal/thermal_zone{zone}/temp"] = f"{44000 + 500 * zone}\n"
    for policy, ceiling in (("policy0", 2808000), ("policy10", 3900000)):
        folder = f"/sys/devices/system/cpu/cpufreq/{policy}"
        files |= {
            f"{folder}/scaling_max_freq": f"{ceiling}\n",
            f"{folder}/cpuinfo_max_freq": f"{ceiling}\n",
            f"{folder}/scaling_cur_freq": "1378000\n",
            f"{folder}/scaling_governor": "performance\n",
        }
    labels = [
        "sys_total",
        "soc_pkg",
        "cpu_gpu",
        "cpu_p",
        "cpu_e",
        "vcore",
        "dc_input",
        "gpu",
        "prereg",
        "dla",
        "pl1",
        "pl2",
        "syspl1",
        "syspl2",
    ]
    watts = (25, 17, 6, 0.5, 0.01, 4, 26, 5, 8, 0.1, 18, 18, 26, 27)
    files |= {"/sys/class/hwmon/hwmon5/name": "spbm\n", "/sys/class/hwmon/hwmon5/prochot": "0\n"}
    files["/sys/class/hwmon/hwmon5/pl_level"] = "0\n"
    for index, (label, value) in enumerate(zip(labels, watts, strict=True), 1):
        files[f"/sys/class/hwmon/hwmon5/power{index}_label"] = f"{label}\n"
        files[f"/sys/class/hwmon/hwmon5/power{index}_input"] = f"{int(value * 1e6)}\n"
    for index, cap in ((11, 250), (12, 250), (13, 300), (14, 300)):
        files[f"/sys/class/hwmon/hwmon5/power{index}_cap"] = f"{cap * 1_000_000}\n"
    nvme = "/sys/class/nvme/nvme0"
    files |= {
        f"{nvme}/model": parts["drive"] + "\n",
        f"{nvme}/firmware_rev": parts["drive_firmware"] + "\n",
        f"{nvme}/state": "live\n",
        f"{nvme}/device/current_link_speed": f"{parts['drive_gts']} GT/s PCIe\n",
        f"{nvme}/device/max_link_speed": f"{parts['drive_gts']} GT/s PCIe\n",
        f"{nvme}/device/current_link_width": "4\n",
        f"{nvme}/device/max_link_width": "4\n",
    }
    log = {"critical_warning": 0, "media_errors": 0, "warning_temp_time": 0, "critical_comp_time": 0}
    node["commands"]["nvme smart-log /dev/nvme0 -o json"] = json.dumps(log)


def _docker(node: Recording) -> None:
    info = {
        "ServerVersion": "29.2.1",
        "Driver": "overlay2",
        "DriverStatus": [["Backing Filesystem", "extfs"]],
        "DockerRootDir": "/var/lib/docker",
        "Runtimes": {"runc": {}, "nvidia": {}},
        "CgroupVersion": "2",
        "Warnings": None,
    }
    node["commands"] |= {
        "docker info --format {{json .}}": json.dumps(info),
        "docker ps -aq --no-trunc": "",
        "docker images -q --no-trunc": "",
    }
    node["files"]["/var/run/cdi/nvidia.yaml"] = ""


def node(unit: Unit) -> Recording:
    """One healthy node."""
    parts = MODELS[unit.model]
    made: Recording = {
        "about": "synthetic: built from published GB10 values, no machine was read",
        "files": {},
        "links": {},
        "modes": {},
        "sizes": {},
        "spaces": {},
        "commands": {},
    }
    _kernel(unit, parts, made)
    _machine(parts, made)
    _moment(unit, made)
    _gpu(unit, made, parts["driver"])
    _firmware(parts, made)
    _links(unit, made)
    _network(unit, made)
    _docker(made)
    return made


CLUSTERS: dict[str, tuple[Unit, ...]] = {
    "fe-triangle": (Unit(1), Unit(2), Unit(3)),
    "asus-pair": (Unit(1, "asus", "switch"), Unit(2, "asus", "switch")),
    "dell-pair": (Unit(1, "dell", "switch", ("p1",)), Unit(2, "dell", "switch")),
    "mixed-four": (
        Unit(1, "fe", "switch"),
        Unit(2, "fe", "switch", ("p1",)),
        Unit(3, "asus", "switch"),
        Unit(4, "asus", "switch"),
    ),
    "fe-ring": tuple(Unit(number, "fe", "ring") for number in (1, 2, 3, 4)),
    "fe-alone": (Unit(1, "fe", "alone", ("p0", "p1")),),
}


def cluster(name: str) -> dict[str, Recording]:
    """Node name → recording, all healthy."""
    return {unit.name: node(unit) for unit in CLUSTERS[name]}


def write_lab() -> None:
    """Rewrite the lab's recordings."""
    for name, recording in cluster("fe-triangle").items():
        place = LAB / name / "node.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(recording, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_lab()
