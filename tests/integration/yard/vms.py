"""Two virtual machines for what namespaces cannot do: the kernel's NFS server and client, systemd, a reboot.

Debian's own kernel under qemu's TCG: slow (a boot takes most of a minute), so the machines are made once for a run.
They are reached like nodes: same login key, pinned host keys, a `cluster.yaml`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.integration.yard import state
from tests.integration.yard.layout import CONTROLLER_ADDRESS
from tests.integration.yard.session import network
from tests.integration.yard.state import YardError, run

CACHE = Path.home() / ".cache" / "sparkyard" / "yard" / "vm"
PACKAGES = (
    "systemd-sysv,openssh-server,iproute2,kmod,udev,nfs-kernel-server,nfs-common,iputils-ping,ethtool,"
    "python3-minimal,libpython3-stdlib,python3,rdma-core"
)
MODULES = (
    "virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_mmio virtio_blk crc16 "
    "crc32c_generic libcrc32c mbcache jbd2 ext4 failover net_failover virtio_net"
)
"""What the kernel needs to find its disk and its network, in the order of their needs."""
MEMORY_MB = 1024
DISK = "3G"
BOOT_BOUND_S = 900.0
"""A boot takes 50 s on an idle machine."""
COUNT = 2
CONNECT_S = 60
"""Of our own ssh: an emulated sshd needs seconds for its keys."""
QUIET_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "dpkg-db-backup.timer",
)
"""What a machine that lives for minutes has no use for."""
PROBE_S = 8.0
"""Between two questions whether sshd answers: on a slow machine more of them run into sshd's own MaxStartups."""

INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
cd /m; for m in {MODULES}; do insmod $m.ko; done
n=0; while [ ! -b /dev/vda ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done
mount -t ext4 /dev/vda /newroot || exec sh
umount /proc /sys; mount --move /dev /newroot/dev
exec switch_root /newroot /sbin/init
"""
NAMES_UNIT = """[Unit]
Description=Names and addresses of the yard's ports
DefaultDependencies=no
Before=network-pre.target sshd.service nfs-server.service
After=systemd-udevd.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/yard-names
[Install]
WantedBy=sysinit.target
"""
NAMES = """#!/bin/sh
id=$(sed -n 's/.*spark.id=\\([0-9]*\\).*/\\1/p' /proc/cmdline)
hostname spark-$id
for port in /sys/class/net/*; do
  old=$(basename "$port")
  case $(cat "$port/address") in
    52:54:00:00:00:*) new=enP7s7; address=10.77.0.2$id/24 ;;
    52:54:00:00:01:*) new=enp1s0f0np0; address=192.168.101.2$id/24 ;;
    *) continue ;;
  esac
  ip link set "$old" down; ip link set "$old" name $new
  ip addr add $address dev $new; ip link set $new up
done
[ ! -e /sys/class/net/enp1s0f0np0 ] || ip link set enp1s0f0np0 mtu 9000
"""


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
        key, known = self.folder / "id_ed25519", self.folder / "known_hosts"
        argv = ["ip", "netns", "exec", self.namespace, "ssh", "-o", f"UserKnownHostsFile={known}"]
        argv += [
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            f"ConnectTimeout={CONNECT_S}",
            "-i",
            str(key),
        ]
        return run(*argv, f"root@{_address(number)}", command, timeout_s=timeout_s, check=check)

    def reboot(self, number: int) -> None:
        """Restart one machine and wait until it is back."""
        before = self.run(number, "cat /proc/sys/kernel/random/boot_id")
        self.run(number, "systemctl reboot", check=False)
        deadline = time.monotonic() + BOOT_BOUND_S
        while time.monotonic() < deadline:
            time.sleep(2)
            try:
                if self.run(number, "cat /proc/sys/kernel/random/boot_id", timeout_s=30) not in {"", before}:
                    return
            except (YardError, subprocess.TimeoutExpired):
                continue
        raise YardError(f"machine {number} is not back {BOOT_BOUND_S:.0f} s after its reboot")


def _address(number: int) -> str:
    return f"10.77.0.2{number}"


def up(vm_id: str) -> Vms:
    """Make the disk image once, start both machines, wait until they answer."""
    state.need_root()
    where = state.folder(vm_id)
    where.mkdir(parents=True, exist_ok=True)
    vms = Vms(vm_id, where)
    kernel, image, initrd = _image()
    _network(vms)
    for key in ("id_ed25519", "host_key"):
        if not (where / key).exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "yard", "-f", str(where / key))
    _files(vms)
    for number in range(1, COUNT + 1):
        if state.process(where, f"vm{number}") is None:
            _start(vms, number, kernel, image, initrd)
    for number in range(1, COUNT + 1):
        _await_ssh(vms, number)
    for number in range(1, COUNT + 1):
        # what still starts would make the first logins slow
        vms.run(number, "systemctl is-system-running --wait", timeout_s=BOOT_BOUND_S, check=False)
    return vms


def down(vm_id: str) -> None:
    """Take everything back but the cached disk image."""
    where = state.folder(vm_id)
    for name in state.names(where):
        state.end(where, name)
    run("ip", "netns", "del", f"{vm_id}-vm", check=False)
    state.remove_tree(where)


def _image() -> tuple[Path, Path, Path]:
    """Kernel, root file system and initial RAM disk; made once and kept in the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    kernels = sorted((CACHE / "kernel" / "boot").glob("vmlinuz-*"))
    if not kernels:
        depends = run("apt-cache", "depends", "linux-image-amd64").split("Depends: ")
        name = next(word.split()[0] for word in depends[1:] if word.startswith("linux-image"))
        subprocess.run(["apt-get", "download", "-qq", name], cwd=CACHE, check=True, timeout=300)
        run("dpkg", "-x", str(next(CACHE.glob(f"{name}*.deb"))), str(CACHE / "kernel"))
        kernels = sorted((CACHE / "kernel" / "boot").glob("vmlinuz-*"))
    release = kernels[0].name.removeprefix("vmlinuz-")
    tar = CACHE / "rootfs.tar"
    if not tar.exists():
        mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Codename: bookworm").split()[0]
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm"]
        run(*argv, str(CACHE / "part-rootfs.tar"), mirror, timeout_s=1200)
        (CACHE / "part-rootfs.tar").rename(tar)
    image = CACHE / "root.img"
    if not image.exists():
        _root(tar, release, image)
    initrd = CACHE / "initrd.gz"
    if not initrd.exists():
        _initrd(release, initrd)
    return kernels[0], image, initrd


def _root(tar: Path, release: str, image: Path) -> None:
    root = CACHE / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    run("tar", "-xf", str(tar), "-C", str(root), timeout_s=600)
    shutil.copytree(CACHE / "kernel/lib/modules", root / "lib/modules", dirs_exist_ok=True)
    run("depmod", "-b", str(root), release, timeout_s=300)
    (root / "usr/local/sbin/yard-names").write_text(NAMES)
    (root / "usr/local/sbin/yard-names").chmod(0o755)
    (root / "etc/systemd/system/yard-names.service").write_text(NAMES_UNIT)
    wants = root / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    (wants / "yard-names.service").symlink_to("/etc/systemd/system/yard-names.service")
    (root / "etc/fstab").write_text("/dev/vda / ext4 rw 0 0\n")
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    # The login and host keys are each run's own: they come on a second, small disk.
    (root / "etc/ssh/sshd_config.d/yard.conf").write_text(
        "HostKey /run/yard/host_key\nAuthorizedKeysFile /run/yard/authorized_keys\nUsePAM no\n"
        "PermitRootLogin prohibit-password\n"
    )
    unit = root / "etc/systemd/system/ssh.service.d"
    unit.mkdir(parents=True)
    load = "mkdir -p /run/yard && cd /run/yard && tar -xf /dev/vdb && chown -R 0:0 . && chmod 600 *"
    (unit / "yard.conf").write_text(
        f"[Service]\nExecStartPre=\nExecStartPre=/bin/sh -c '{load}'\nExecStartPre=/usr/sbin/sshd -t\n"
    )
    partial = image.with_suffix(".part")
    run("mke2fs", "-q", "-t", "ext4", "-d", str(root), "-F", str(partial), DISK, timeout_s=600)
    partial.rename(image)
    shutil.rmtree(root)


def _initrd(release: str, target: Path) -> None:
    tree = CACHE / "initrd"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "m", "proc", "sys", "dev", "newroot"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin/busybox")
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    there = {path.name: path for path in (CACHE / f"kernel/lib/modules/{release}").rglob("*.ko")}
    for module in MODULES.split():
        if f"{module}.ko" in there:
            shutil.copy(there[f"{module}.ko"], tree / "m")
    packed = "find . | cpio -o -H newc --quiet | gzip -1"
    with target.open("wb") as out:
        subprocess.run(["sh", "-c", packed], cwd=tree, stdout=out, check=True, timeout=120)


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


def _start(vms: Vms, number: int, kernel: Path, image: Path, initrd: Path) -> None:
    disk = vms.folder / f"disk{number}.qcow2"
    if not disk.exists():
        run("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(image), "-F", "raw", str(disk))
    append = f"console=ttyS0 root=/dev/vda rw spark.id={number} mitigations=off quiet systemd.show_status=0 "
    append += (
        "systemd.default_timeout_start_sec=600 "  # under load the usual 90 s end units that only are slow
    )
    append += " ".join(f"systemd.mask={unit}" for unit in QUIET_UNITS)
    argv = ["ip", "netns", "exec", vms.namespace, "qemu-system-x86_64", "-accel", "tcg,thread=multi"]
    argv += [
        "-cpu",
        "max",
        "-machine",
        "q35",
        "-m",
        str(MEMORY_MB),
        "-smp",
        "1",
        "-display",
        "none",
        "-nodefaults",
    ]
    argv += [
        "-serial",
        f"file:{vms.folder}/vm{number}.console",
        "-kernel",
        str(kernel),
        "-initrd",
        str(initrd),
    ]
    argv += ["-append", append, "-drive", f"file={disk},if=virtio,cache=unsafe", "-device", "virtio-rng-pci"]
    argv += ["-drive", f"file={vms.folder}/keys.tar,if=virtio,format=raw,readonly=on"]
    for letter, mac, extra in (("m", "00", ""), ("r", "01", ",host_mtu=9000")):
        argv += ["-netdev", f"tap,id={letter},ifname={letter}{number},script=no,downscript=no"]
        address = f"52:54:00:00:{mac}:0{number}"
        argv += ["-device", f"virtio-net-pci,netdev={letter},mac={address},romfile={extra}"]
    with (vms.folder / f"vm{number}.log").open("wb") as log:
        started = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=os.environ
        )
    state.remember(vms.folder, f"vm{number}", started.pid)


def _await_ssh(vms: Vms, number: int) -> None:
    deadline = time.monotonic() + BOOT_BOUND_S
    while time.monotonic() < deadline:
        if state.process(vms.folder, f"vm{number}") is None:
            raise YardError(f"machine {number} ended: {(vms.folder / f'vm{number}.log').read_text()[-500:]}")
        with network(vms.namespace):
            try:
                with socket.create_connection((_address(number), 22), timeout=PROBE_S) as probe:
                    if probe.recv(4) == b"SSH-":
                        return
            except OSError:
                pass
        time.sleep(PROBE_S)
    raise YardError(
        f"machine {number} does not answer {BOOT_BOUND_S:.0f} s after its start; see vm{number}.console"
    )
