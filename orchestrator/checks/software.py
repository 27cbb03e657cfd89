"""Docker, ports, clocks and identities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from orchestrator.checks.check import FORUM, Check, E, Hit, Node, W, Yard, value

MAX_RESTARTS = 3
MAX_SKEW_S = 1.0  # logs and timelines of the nodes are laid side by side; NTP keeps milliseconds


def group(node: Node) -> Iterable[Hit]:
    docker, host = value(node.facts.docker), value(node.facts.host)
    if docker is not None and not docker.reachable and "permission denied" in (docker.error or "").lower():
        yield Hit(f"{host.user if host else 'the user'} may not use Docker", evidence=docker.error or "")


def daemon(node: Node) -> Iterable[Hit]:
    fact = node.facts.docker
    if fact is not None and fact.value is None and fact.error is None:
        yield Hit("Docker is not installed")
        return
    docker = value(fact)
    if (
        docker is not None
        and not docker.reachable
        and "permission denied" not in (docker.error or "").lower()
    ):
        yield Hit("the Docker daemon does not answer", evidence=docker.error or "")


def runtime(node: Node) -> Iterable[Hit]:
    docker = value(node.facts.docker)
    if docker is not None and docker.reachable and "nvidia" not in docker.runtimes:
        yield Hit(f"runtimes: {', '.join(docker.runtimes) or 'none'}")


def cdi(node: Node) -> Iterable[Hit]:
    docker = value(node.facts.docker)
    if docker is not None and docker.reachable and not docker.cdi:
        yield Hit("no spec in /etc/cdi or /var/run/cdi")


def architecture(node: Node) -> Iterable[Hit]:
    docker = value(node.facts.docker)
    for image in docker.images if docker else ():
        if image.architecture and image.architecture not in ("arm64", "aarch64"):
            name = image.tags[0] if image.tags else image.id[:19]
            used = (
                any(item.image in image.tags or item.image == image.id for item in docker.containers)
                if docker
                else False
            )
            yield Hit(f"{name} is {image.architecture}", link=name, severity=E if used else W)


def restarts(node: Node) -> Iterable[Hit]:
    docker = value(node.facts.docker)
    for item in docker.containers if docker else ():
        if item.restarts >= MAX_RESTARTS:
            yield Hit(f"{item.name} restarted {item.restarts} times", link=item.name)


def store_mixed(yard: Yard) -> Iterable[Hit]:
    found = {
        node.name: f"{docker.store} {docker.storage}"
        for node in yard.seen
        if (docker := value(node.facts.docker)) and docker.reachable
    }
    if len(set(found.values())) > 1:
        yield Hit(", ".join(f"{name}: {text}" for name, text in found.items()))


def cgroup(node: Node) -> Iterable[Hit]:
    docker = value(node.facts.docker)
    lines = [
        text
        for text in (docker.warnings if docker else ())
        if "cgroup" in text.lower() or "limit support" in text
    ]
    if lines:
        yield Hit(lines[0])


def port_taken(node: Node) -> Iterable[Hit]:
    for item in value(node.facts.listeners) or ():
        if item.port in node.ports:
            owner = f"{item.process} (pid {item.pid})" if item.pid else "a process of another user"
            yield Hit(f"port {item.port} on {item.address}: {owner}", link=str(item.port))


def skew(yard: Yard) -> Iterable[Hit]:
    offsets = {node.name: node.offset_s for node in yard.seen if node.offset_s is not None}
    if len(offsets) < 2:
        return
    ordered = sorted(offsets.values())
    middle = ordered[(len(ordered) - 1) // 2]
    for name, offset in offsets.items():
        if abs(offset - middle) > MAX_SKEW_S:
            yield Hit(f"{offset - middle:+.1f} s against the other nodes", node=name)


def synchronized(node: Node) -> Iterable[Hit]:
    clock = value(node.facts.clock)
    if clock is not None and clock.synchronized is False:
        yield Hit("NTPSynchronized=no")


def machine_id(yard: Yard) -> Iterable[Hit]:
    if yard.topology == "single-host":
        return
    hosts = {node.name: host for node in yard.seen if (host := value(node.facts.host))}
    ids = Counter(host.machine_id for host in hosts.values() if host.machine_id)
    keys = Counter(key for host in hosts.values() for key in set(host.host_keys))
    for what, counts in (("machine-id", ids), ("SSH host key", keys)):
        for text, count in counts.items():
            if count > 1:
                names = [
                    name for name, host in hosts.items() if text == host.machine_id or text in host.host_keys
                ]
                yield Hit(f"{', '.join(names)} have the same {what}", node=names[-1], evidence=str(text)[:60])
                return


CHECKS = (
    Check(
        "docker.daemon",
        ("docker",),
        "Docker is installed and answers",
        "it does not",
        E,
        "systemctl start docker",
        "proposal",
        each=daemon,
        only_docker=True,
    ),
    Check(
        "docker.group",
        ("docker", "host"),
        "the user may use Docker",
        "permission denied on docker.sock",
        E,
        "usermod -aG docker USER, then log in again",
        "https://github.com/NVIDIA/dgx-spark-playbooks",
        each=group,
        only_docker=True,
    ),
    Check(
        "docker.runtime",
        ("docker",),
        "the runtime nvidia",
        "absent",
        E,
        "install nvidia-container-toolkit; nvidia-ctk runtime configure --runtime=docker; restart Docker",
        "https://github.com/NVIDIA/dgx-spark-playbooks",
        each=runtime,
        only_docker=True,
    ),
    Check(
        "docker.cdi",
        ("docker",),
        "a device spec in /etc/cdi or /var/run/cdi",
        "none: `unresolvable CDI devices`; a freeze never comes from it",
        W,
        "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        "https://github.com/vroomfondel/dgxarley https://github.com/NVIDIA/nvidia-container-toolkit/issues/1910",
        each=cdi,
        only_docker=True,
    ),
    Check(
        "docker.arch",
        ("docker",),
        "images for arm64",
        "amd64: runs emulated, 3.7 tokens/s",
        E,
        "pull the arm64 variant",
        "field report (amd64 image under QEMU)",
        each=architecture,
        only_docker=True,
    ),
    Check(
        "docker.restarts",
        ("docker",),
        f"fewer than {MAX_RESTARTS} restarts of a container",
        "more: a loop",
        W,
        "read the container's first error: docker logs NAME",
        "field report (29 restarts)",
        each=restarts,
        only_docker=True,
    ),
    Check(
        "docker.store_mixed",
        ("docker",),
        "the same image store on all nodes",
        "different ones: the same image has different ids",
        W,
        "use one storage driver everywhere; images are compared by content, not by id",
        "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/12",
        whole=store_mixed,
        only_docker=True,
        needs_peers=True,
    ),
    Check(
        "docker.cgroup",
        ("docker",),
        "all cgroup controllers are there",
        "Docker warns that some are missing",
        W,
        "boot with the unified cgroup hierarchy",
        "https://github.com/NVIDIA/OpenShell/issues/374",
        each=cgroup,
        only_docker=True,
    ),
    Check(
        "port.taken",
        ("listeners",),
        "the profile's ports are free",
        "somebody listens there",
        E,
        "stop the owner, or choose other ports in the profile",
        "field reports",
        each=port_taken,
    ),
    Check(
        "clock.skew",
        ("clock",),
        f"clocks within {MAX_SKEW_S:g} s",
        "one is off",
        W,
        "systemctl restart systemd-timesyncd (or chrony) on that node",
        "proposal",
        whole=skew,
        needs_peers=True,
    ),
    Check(
        "clock.sync",
        ("clock",),
        "the clock is kept by NTP",
        "not synchronized",
        W,
        "timedatectl set-ntp true",
        "proposal",
        each=synchronized,
    ),
    Check(
        "id.machine",
        ("host",),
        "machine-id and SSH host keys of its own on every node",
        "the same on two: a cloned image",
        E,
        "rm /etc/machine-id && systemd-machine-id-setup; ssh-keygen -A after removing the old host keys",
        f"{FORUM}377208 (CVE-2026-24218)",
        whole=machine_id,
        needs_peers=True,
    ),
)
