#!/bin/bash
# PID 1 of a yard node, in its own network, mount, UTS, IPC and PID namespaces. Ends as sshd.
# Wants: NODE_NAME NODE_NUMBER NODE_DIR (state, on a real disk) NODE_MEMORY AUTHORIZED_KEY
set -eu
mount --make-rprivate /
mount -t tmpfs -o "size=$NODE_MEMORY,mode=755" tmpfs "$NODE_DIR/overlay"
mkdir -p "$NODE_DIR"/overlay/{upper,work,root} "$NODE_DIR/disk"
root="$NODE_DIR/overlay/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$NODE_DIR/overlay/upper,workdir=$NODE_DIR/overlay/work" "$root"
mkdir -p "$root"/{proc,sys,dev,run,tmp,srv}
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o size=64m tmpfs "$root/srv"
mkdir -p "$root/srv/nvme"
mount --bind "$NODE_DIR/disk" "$root/srv/nvme" # a real disk: O_DIRECT keeps its rules, which tmpfs hides
mkdir -p "$root/root/.ssh" "$root/etc/ssh/keys" "$root/usr/local/libexec/yard"
printf '%s\n' "$AUTHORIZED_KEY" >"$root/root/.ssh/authorized_keys"
chmod 700 "$root/root/.ssh"
: >"$root/root/.bashrc" # the machine's own would run in every remote command
: >"$root/root/.profile"
for tool in exportfs mount.nfs4; do # the machine's kernel has neither NFS server nor client
  rm -f "$root/usr/sbin/$tool"
  cp "$YARD_TOOLS/$tool" "$root/usr/sbin/$tool"
done
cp "$NODE_DIR/ssh_host_ed25519_key" "$root/etc/ssh/keys/" && chmod 600 "$root/etc/ssh/keys/ssh_host_ed25519_key"
rm -f "$root/usr/local/bin/docker" # a client of another release would come first on PATH
cp "$YARD_TOOLS"/* "$root/usr/local/libexec/yard/"
[ ! -d /sys/fs/cgroup/memory ] || {
  # One pure v1 layout: the hybrid layout of the machine is refused by container runtimes.
  mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
  for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
    mkdir "$root/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "$root/sys/fs/cgroup/$controller"
  done
}
hostname "$NODE_NAME"
cd "$root"
mkdir -p .old
pivot_root . .old
# shellcheck disable=SC2016 # the inner shell expands
exec chroot . /bin/bash -c '
set -eu
umount -l /.old && rmdir /.old
echo "$NODE_NAME" >/etc/hostname
printf "127.0.0.1 localhost %s\n" "$NODE_NAME" >/etc/hosts
rm -f /etc/machine-id /etc/ssh/ssh_host_*
printf "%032x\n" "$((0x5a000 + NODE_NUMBER))" >/etc/machine-id
mkdir -p /run/sshd
/usr/local/libexec/yard/sys-facts.sh
cat >/etc/ssh/sshd_yard <<X
Port 22
ListenAddress 0.0.0.0
HostKey /etc/ssh/keys/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
AuthorizedKeysFile .ssh/authorized_keys
Subsystem sftp internal-sftp
PidFile /run/sshd.pid
X
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
  /usr/sbin/sshd -D -e -f /etc/ssh/sshd_yard
'
