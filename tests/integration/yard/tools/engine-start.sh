#!/bin/bash
# Starts a Docker engine of this node's own, data on the node's disk, and waits until it answers.
# Wants: CGROUP_PARENT. Idempotent.
set -eu
export DOCKER_HOST=unix:///run/docker.sock
/usr/bin/docker version >/dev/null 2>&1 && exit 0
mkdir -p /srv/nvme/docker /etc/docker
cat >/etc/docker/daemon.json <<X
{"data-root": "/srv/nvme/docker", "exec-root": "/run/docker", "pidfile": "/run/docker.pid", "storage-driver": "overlay2",
 "iptables": false, "ip6tables": false, "bridge": "none", "cgroup-parent": "$CGROUP_PARENT", "hosts": ["$DOCKER_HOST"],
 "runtimes": {"norlimit": {"path": "/usr/local/libexec/yard/runc-norlimit"}}, "default-runtime": "norlimit"}
X
setsid /usr/sbin/dockerd >/run/dockerd.log 2>&1 </dev/null &
for _ in $(seq 150); do
  sleep 0.2
  /usr/bin/docker version >/dev/null 2>&1 && exit 0
done
tail -20 /run/dockerd.log >&2
echo "the Docker engine of $(hostname) did not answer within 30 s" >&2
exit 1
