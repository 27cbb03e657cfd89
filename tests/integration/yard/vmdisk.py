"""What the virtual machines start from: kernel, initial RAM disk, root disk. Made once, kept by digest in the cache.

Emulated processors are 20 times slower than real ones, so what a machine would do at every start and nobody looks at
is done here or left out: the kernel is unpacked, device managers and consoles do not start, only needed modules are
there.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.integration.yard.state import YardError, run

CACHE = Path.home() / ".cache" / "sparkyard" / "yard" / "vm"
PACKAGES = (
    "systemd-sysv,openssh-server,iproute2,kmod,udev,nfs-kernel-server,nfs-common,iputils-ping,ethtool,"
    "python3,rdma-core,ibverbs-providers,ibverbs-utils,perftest"
)
ROOT_MODULES = (
    "virtio_pci",
    "virtio_blk",
    "crc32c_generic",
    "ext4",
    "virtio_net",
)
"""What the kernel needs to find its disk and its network; their needs are added."""
MODULES = (
    "nfsd",
    "nfsv4",
    "rpcrdma",
    "rdma_rxe",
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "autofs4",
    "sch_tbf",
)
"""What the tests need later; of 4,000 modules that the kernel's package has."""
DISK = "1500M"
MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "kmod-static-nodes.service",
    "modprobe@.service",
    "nfs-blkmap.service",
    "nfs-idmapd.service",
    "rpc-gssd.service",
    "rpc-statd-notify.service",
    "rpc-statd.service",
    "rpcbind.service",
    "rpcbind.socket",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-binfmt.service",
    "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service",
    "systemd-journal-flush.service",
    "systemd-machine-id-commit.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-sysusers.service",
    "systemd-udev-settle.service",
    "systemd-udev-trigger.service",
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
)
"""Units that a machine with two fixed ports, one disk and NFS 4 alone has no use for."""

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in $(cat /m/order); do insmod /m/$m; done
n=0; while [ ! -b /dev/vda ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n+1)); done
mount -t ext4 /dev/vda /newroot || exec sh
umount /proc /sys; mount --move /dev /newroot/dev
exec switch_root /newroot /sbin/init
"""
NAMES_UNIT = """[Unit]
Description=Names and addresses of the yard's ports
DefaultDependencies=no
Before=network-pre.target
Wants=network-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/yard-names
[Install]
WantedBy=sysinit.target
"""
NAMES = """#!/bin/sh
read -r line </proc/cmdline
id=${line#*spark.id=} id=${id%% *}
echo spark-$id >/proc/sys/kernel/hostname
for port in /sys/class/net/*; do
  read -r mac <"$port/address"
  case $mac in
    52:54:00:00:00:*) new=enP7s7 address=10.77.0.2$id/24 mtu=1500 ;;
    52:54:00:00:01:*) new=enp1s0f0np0 address=192.168.101.2$id/24 mtu=9000 ;;
    *) continue ;;
  esac
  ip link set "${port##*/}" name $new mtu $mtu up
  ip addr add $address dev $new
done
ip link set lo up
[ ! -b /dev/vdc ] || mount -o ro /dev/vdc /opt
"""
READY_UNIT = """[Unit]
Description=Tells the yard that this machine is up
After=ssh.service nfs-server.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo yard-ready >/dev/ttyS0'
[Install]
WantedBy=multi-user.target
"""
SSHD = """HostKey /run/yard/host_key
AuthorizedKeysFile /run/yard/authorized_keys .ssh/authorized_keys
UsePAM no
PermitRootLogin prohibit-password
"""
SSHD_UNIT = """[Service]
ExecStartPre=
ExecStartPre=/bin/sh -c 'mkdir -p /run/yard && cd /run/yard && tar -xf /dev/vdb && chown -R 0:0 . && chmod 600 *'
"""
"""The login and host keys are each run's own: they come on a second, small disk."""
NFS = """[nfsd]
threads=4
vers3=n
grace-time=10
lease-time=10
"""
"""After a restart a server lets nobody open files for the grace time; its default is 90 s."""
FILES = {
    "usr/local/sbin/yard-names": NAMES,
    "etc/systemd/system/yard-names.service": NAMES_UNIT,
    "etc/systemd/system/yard-ready.service": READY_UNIT,
    "etc/ssh/sshd_config.d/yard.conf": SSHD,
    "etc/systemd/system/ssh.service.d/yard.conf": SSHD_UNIT,
    "etc/nfs.conf.d/yard.conf": NFS,
    "etc/fstab": "",
    "etc/machine-id": "",
}
KERNEL_MAGIC = b"\xfd7zXZ\x00"


@dataclass(frozen=True, slots=True)
class Start:
    """Files that qemu starts a machine from."""

    kernel: Path
    initrd: Path
    image: Path


def made() -> Start:
    """The files, made where they are not in the cache yet: a minute, most of it Debian's packages."""
    CACHE.mkdir(parents=True, exist_ok=True)
    release = _kernel()
    words = (release, PACKAGES, DISK, INIT, *ROOT_MODULES, *MODULES, *MASKED, *FILES, *FILES.values())
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
    start = Start(CACHE / f"vmlinux-{release}", CACHE / f"initrd-{digest}", CACHE / f"root-{digest}.img")
    if not start.kernel.exists():
        _unpack_kernel(CACHE / "kernel" / "boot" / f"vmlinuz-{release}", start.kernel)
    if not start.initrd.exists():
        _initrd(release, start.initrd)
    if not start.image.exists():
        for old in CACHE.glob("root-*.img"):
            old.unlink()
        _root(release, start.image)
    return start


def _kernel() -> str:
    """Debian's kernel in the cache; its release."""
    modules = CACHE / "kernel" / "lib" / "modules"
    if not modules.is_dir():
        depends = run("apt-cache", "depends", "linux-image-amd64").split("Depends: ")
        name = next(word.split()[0] for word in depends[1:] if word.startswith("linux-image"))
        subprocess.run(["apt-get", "download", "-qq", name], cwd=CACHE, check=True, timeout=300)
        package = next(CACHE.glob(f"{name}*.deb"))
        run("dpkg", "-x", str(package), str(CACHE / "part-kernel"), timeout_s=300)
        package.unlink()
        (CACHE / "part-kernel").rename(CACHE / "kernel")
    release = next(modules.iterdir()).name
    if not (modules / release / "modules.dep").exists():
        run("depmod", "-b", str(CACHE / "kernel"), release, timeout_s=300)
    return release


def _unpack_kernel(compressed: Path, target: Path) -> None:
    """The ELF file inside of a bzImage: qemu starts it as it is (PVH), and nobody unpacks it under emulation."""
    data = compressed.read_bytes()
    unpacked = lzma.LZMADecompressor().decompress(data[data.index(KERNEL_MAGIC) :])
    if not unpacked.startswith(b"\x7fELF"):
        raise YardError(f"{compressed}: no ELF file inside")
    partial = target.with_suffix(".part")
    partial.write_bytes(unpacked)
    partial.rename(target)


def _modules(release: str, names: tuple[str, ...]) -> list[Path]:
    """The modules and what they need, in the order in which they are loaded."""
    found: list[Path] = []
    for name in names:
        shown = run("modprobe", "-d", str(CACHE / "kernel"), "-S", release, "--show-depends", name)
        for line in shown.splitlines():
            if line.startswith("insmod ") and (path := Path(line.split()[1])) not in found:
                found.append(path)
    return found


def _initrd(release: str, target: Path) -> None:
    tree = CACHE / "initrd"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "m", "proc", "sys", "dev", "newroot"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin/busybox")
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    modules = _modules(release, ROOT_MODULES)
    for path in modules:
        shutil.copy(path, tree / "m")
    (tree / "m/order").write_text("\n".join(path.name for path in modules))
    partial = target.with_suffix(".part")
    with partial.open("wb") as out:
        packed = "find . | cpio -o -H newc --quiet"
        subprocess.run(["sh", "-c", packed], cwd=tree, stdout=out, check=True, timeout=120)
    shutil.rmtree(tree)
    partial.rename(target)


def _root(release: str, image: Path) -> None:
    tar = CACHE / f"rootfs-{hashlib.sha256(PACKAGES.encode()).hexdigest()[:8]}.tar"
    if not tar.exists():
        for old in CACHE.glob("rootfs-*.tar"):
            old.unlink()
        mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Codename: bookworm").split()[0]
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm"]
        run(*argv, str(CACHE / "part-rootfs.tar"), mirror, timeout_s=1200)
        (CACHE / "part-rootfs.tar").rename(tar)
    root = CACHE / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    left_out = (
        "./usr/share/doc",
        "./usr/share/locale",
        "./usr/share/man",
        "./var/cache/apt",
        "./var/lib/apt",
    )
    run("tar", "-xf", str(tar), "-C", str(root), *(f"--exclude={path}/*" for path in left_out), timeout_s=600)
    kernel = CACHE / "kernel"
    for path in _modules(release, (*ROOT_MODULES, *MODULES)):
        place = root / path.relative_to(kernel)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    for path in (kernel / "lib/modules" / release).glob("modules.builtin*"):
        shutil.copy(path, root / "lib/modules" / release)
    run("depmod", "-b", str(root), release, timeout_s=300)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "usr/local/sbin/yard-names").chmod(0o755)
    units = root / "etc/systemd/system"
    for target, unit in (("sysinit", "yard-names"), ("multi-user", "yard-ready")):
        wants = units / f"{target}.target.wants"
        wants.mkdir(parents=True, exist_ok=True)
        (wants / f"{unit}.service").symlink_to(f"/etc/systemd/system/{unit}.service")
    for name in MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    shutil.rmtree(root / "var/log/journal", ignore_errors=True)  # kept in memory
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    partial = image.with_suffix(".part")
    run("mke2fs", "-q", "-t", "ext4", "-d", str(root), "-F", str(partial), DISK, timeout_s=600)
    partial.rename(image)
    shutil.rmtree(root)
