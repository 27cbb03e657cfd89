"""Two virtual machines for what namespaces cannot do: the kernel's NFS server and client, systemd, a reboot.

Debian's own kernel, with KVM where the processor has it, else emulated. They are reached like nodes: same login key,
pinned host keys, a `cluster.yaml`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.integration.yard import state, vmdisk
from tests.integration.yard.layout import CONTROLLER_ADDRESS
from tests.integration.yard.state import YardError, run

MEMORY_MB = 1536
BOOT_BOUND_S = 300.0
"""A boot takes 20 s under emulation on an idle machine, 3 s with KVM."""
COUNT = 2
CONNECT_S = 60
"""Of our own ssh: an emulated sshd needs seconds for its keys."""
LOOK_S = 0.5
READY = "yard-ready"
"""Written to the console by a machine that is up."""
BOOT_WORDS = (
    "console=ttyS0 root=/dev/vda rw quiet loglevel=3 systemd.show_status=0 mitigations=off nokaslr audit=0 "
    "apparmor=0 selinux=0 cryptomgr.notests nowatchdog tsc=reliable no_timer_check rcupdate.rcu_expedited=1 "
    "systemd.default_timeout_start_sec=600"
)
"""The last: under load the usual 90 s end units that only are slow."""
MODES = (("m", "00", 10_000, ""), ("r", "01", 200_000, ",host_mtu=9000"))
"""Letter, part of the hardware address, Mb/s and more of the management port and of the fast one."""


@dataclass(frozen=True, slots=True)
class Vms:
    """Machines that are up."""

    id: str
    folder: Path

    @property
    def cluster(self) -> Path:
        """The ready `cluster.yaml`."""
        return self.folder / "cluster.yaml"

    @property
    def namespace(self) -> str:
        """Network namespace with the controller and the bridges."""
        return f"{self.id}-vm"

    def run(self, number: int, command: str, *, timeout_s: float = 120.0, check: bool = True) -> str:
        """Run a shell command in a machine as root; its output."""
        argv = ["ip", "netns", "exec", self.namespace, "ssh", *self._login()]
        return run(*argv, f"root@{_address(number)}", command, timeout_s=timeout_s, check=check)

    def put(self, number: int, source: str, target: str) -> None:
        """Copy a file of the host into a machine."""
        argv = ["ip", "netns", "exec", self.namespace, "scp", "-q", *self._login()]
        run(*argv, source, f"root@{_address(number)}:{target}", timeout_s=300)

    def _login(self) -> list[str]:
        words = ["StrictHostKeyChecking=yes", "BatchMode=yes", f"ConnectTimeout={CONNECT_S}"]
        words.append(f"UserKnownHostsFile={self.folder / 'known_hosts'}")
        return [*(part for word in words for part in ("-o", word)), "-i", str(self.folder / "id_ed25519")]

    def reboot(self, *numbers: int) -> None:
        """Restart machines, all at once, and wait until they are back."""
        before = {number: self._starts(number) for number in numbers}
        for number in numbers:
            self.run(number, "systemctl reboot --no-block", check=False)
        for number in numbers:
            self.await_start(number, before[number] + 1)

    def await_start(self, number: int, starts: int) -> None:
        """Wait until the machine has said so many times that it is up."""
        deadline = time.monotonic() + BOOT_BOUND_S
        while self._starts(number) < starts:
            if state.process(self.folder, f"vm{number}") is None:
                raise YardError(
                    f"machine {number} ended: {(self.folder / f'vm{number}.log').read_text()[-500:]}"
                )
            if time.monotonic() > deadline:
                last = self._console(number).read_text(errors="replace")[-500:]
                raise YardError(f"machine {number} is not up after {BOOT_BOUND_S:.0f} s; its console: {last}")
            time.sleep(LOOK_S)

    def _starts(self, number: int) -> int:
        try:
            return self._console(number).read_text(errors="replace").count(READY)
        except FileNotFoundError:
            return 0

    def _console(self, number: int) -> Path:
        return self.folder / f"vm{number}.console"


def _address(number: int) -> str:
    return f"10.77.0.2{number}"


def up(vm_id: str, disks: Sequence[Path] = ()) -> Vms:
    """Make the disk image once, start both machines, wait until they answer.

    Args:
        disks: one more disk each machine sees read-only, as /dev/vdc, mounted at /opt.
    """
    state.need_root()
    where = state.folder(vm_id)
    where.mkdir(parents=True, exist_ok=True)
    vms = Vms(vm_id, where)
    start = vmdisk.made()
    _network(vms)
    for key in ("id_ed25519", "host_key"):
        if not (where / key).exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "yard", "-f", str(where / key))
    _files(vms)
    for number in range(1, COUNT + 1):
        if state.process(where, f"vm{number}") is None:
            _start(vms, number, start, disks)
    for number in range(1, COUNT + 1):
        vms.await_start(number, 1)
    return vms


def down(vm_id: str) -> None:
    """Take everything back but the cached disk image."""
    where = state.folder(vm_id)
    for name in state.names(where):
        state.end(where, name)
    run("ip", "netns", "del", f"{vm_id}-vm", check=False)
    state.remove_tree(where)


def accelerated() -> bool:
    """Whether KVM can be used: /dev/kvm alone is not enough, it is there on machines whose processor cannot."""
    words = Path("/proc/cpuinfo").read_text().split()
    return os.access("/dev/kvm", os.W_OK) and ("vmx" in words or "svm" in words)


def _network(vms: Vms) -> None:
    if vms.namespace in run("ip", "netns", "list"):
        return
    run("ip", "netns", "add", vms.namespace)

    def ip(words: str) -> None:
        run("ip", "-n", vms.namespace, *words.split())

    ip("link set lo up")
    for bridge, mtu in (("mgmt0", 1500), ("rail0", 9000)):
        ip(f"link add {bridge} mtu {mtu} type bridge")
        ip(f"link set {bridge} up")
        for number in range(1, COUNT + 1):
            ip(f"tuntap add {bridge[0]}{number} mode tap")
            ip(f"link set {bridge[0]}{number} mtu {mtu} master {bridge} up")
    ip(f"addr add {CONTROLLER_ADDRESS}/24 dev mgmt0")


def _files(vms: Vms) -> None:
    where = vms.folder
    host = " ".join((where / "host_key.pub").read_text().split()[:2])
    (where / "authorized_keys").write_text((where / "id_ed25519.pub").read_text())
    run("tar", "-cf", str(where / "keys.tar"), "-C", str(where), "host_key", "authorized_keys")
    numbers = range(1, COUNT + 1)
    (where / "known_hosts").write_text("".join(f"{_address(number)} {host}\n" for number in numbers))
    nodes = [
        {
            "name": f"spark-{number}",
            "address": _address(number),
            "user": "root",
            "key": str(where / "id_ed25519"),
            "host_key": host,
            "root": "/srv/sparkyard",
            "fabric_address": f"192.168.101.2{number}",
        }
        for number in numbers
    ]
    body = {
        "schema": "sparkyard/cluster/v1",
        "topology": "switch",
        "head": "spark-1",
        "nodes": nodes,
        "checkpoint": {"node": "spark-1", "path": "/home/owner/checkpoint"},
    }
    vms.cluster.write_text(yaml.safe_dump(body, sort_keys=False))


def _start(vms: Vms, number: int, start: vmdisk.Start, disks: Sequence[Path]) -> None:
    disk = vms.folder / f"disk{number}.qcow2"
    if not disk.exists():
        run("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(start.image), "-F", "raw", str(disk))
    append = f"{BOOT_WORDS} spark.id={number} systemd.machine_id={0x5A100 + number:032x}"
    argv = ["ip", "netns", "exec", vms.namespace, "qemu-system-x86_64", *_processor()]
    argv += ["-m", str(MEMORY_MB), "-smp", "1", "-display", "none", "-nodefaults", "-no-user-config"]
    argv += ["-serial", f"file:{vms.folder}/vm{number}.console"]
    argv += ["-kernel", str(start.kernel), "-initrd", str(start.initrd), "-append", append]
    argv += ["-drive", f"file={disk},if=virtio,cache=unsafe"]
    for path in (vms.folder / "keys.tar", *disks):
        argv += ["-drive", f"file={path},if=virtio,format=raw,readonly=on"]
    for letter, mac, mbit, extra in MODES:
        argv += ["-netdev", f"tap,id={letter},ifname={letter}{number},script=no,downscript=no"]
        address = f"52:54:00:00:{mac}:0{number}"
        words = f"virtio-net-pci,netdev={letter},mac={address},speed={mbit},duplex=full,romfile={extra}"
        argv += ["-device", words]
    with (vms.folder / f"vm{number}.log").open("wb") as log:
        started = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=os.environ
        )
    state.remember(vms.folder, f"vm{number}", started.pid)


def _processor() -> list[str]:
    if accelerated():
        return ["-machine", "q35", "-accel", "kvm", "-cpu", "host"]
    return ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]
