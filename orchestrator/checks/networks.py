"""The rest of the network: management, names, forwarding, NCCL's settings, RDMA in containers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from orchestrator.checks.check import FORUM, Check, E, Hit, N, Node, W, Yard, links_of, value
from orchestrator.model.containers import Container
from orchestrator.model.finding import Confidence

FUNCTIONS = 4
MEMLOCK_BYTES = (
    1024**3
)  # below a GiB registration of NCCL's buffers fails; Docker's default is 64 KiB or 8 MiB
INLINE_PAIR = ("NCCL_IB_USE_INLINE", "NCCL_IB_INLINE_THRESHOLD")
IOVA2 = re.compile(r"ibv_reg_mr_iova2|reg_mr.*cannot allocate", re.IGNORECASE)


def ring_forwarding(node: Node) -> Iterable[Hit]:
    network, rules = value(node.facts.network), value(node.facts.forwarding)
    if network is not None and not network.ip_forward:
        yield Hit("net.ipv4.ip_forward is 0")
    if (
        rules is not None
        and rules.policy == "DROP"
        and not any("ACCEPT" in rule for rule in rules.docker_user)
    ):
        yield Hit("FORWARD policy DROP and no ACCEPT in DOCKER-USER")


def _settings(node: Node, yard: Yard) -> Mapping[str, Mapping[str, str]]:
    nccl, docker = value(node.facts.nccl), value(node.facts.docker)
    places: dict[str, Mapping[str, str]] = {"the profile": yard.environment}
    if nccl is not None:
        places["/etc/nccl.conf"] = nccl.config or {}
        places["the system's environment"] = nccl.environment
    for container in docker.containers if docker else ():
        if container.state == "running":
            places[f"container {container.name}"] = container.environment
    return places


def interface_names(node: Node, yard: Yard) -> Iterable[Hit]:
    network = value(node.facts.network)
    known = {item.name: item.addresses for item in network.interfaces} if network else {}
    for place, settings in _settings(node, yard).items():
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            for wanted in settings.get(name, "").lstrip("=").split(","):
                wanted = wanted.strip()
                if not wanted or wanted.startswith("^") or settings[name].startswith("^"):
                    continue
                exact = [key for key in known if key == wanted or key.startswith(wanted)]
                if not exact:
                    yield Hit(f"{name}={wanted} in {place}: no such interface", link=wanted)
                elif not any(":" not in address for key in exact for address in known[key]):
                    yield Hit(f"{name}={wanted} in {place}: no IPv4 address", link=wanted)


def management_driver(node: Node) -> Iterable[Hit]:
    network = value(node.facts.network)
    for item in network.interfaces if network else ():
        if item.driver == "r8169":
            yield Hit(f"{item.name} is driven by r8169", link=item.name)


def hostname(yard: Yard) -> Iterable[Hit]:
    names: dict[str, str] = {}
    for node in yard.seen:
        host, services = value(node.facts.host), value(node.facts.services)
        if host is None:
            continue
        # in the lab the host is this machine and the log is a recording of another: the two say nothing together
        same = (
            node.facts.host and node.facts.services and node.facts.host.origin == node.facts.services.origin
        )
        if same and services is not None and services.avahi_name and services.avahi_name != host.hostname:
            yield Hit(f"host name {host.hostname}, announced as {services.avahi_name}", node=node.name)
        if host.hostname in names and yard.topology != "single-host":
            yield Hit(f"{host.hostname} is also the name of {names[host.hostname]}", node=node.name)
        names.setdefault(host.hostname, node.name)


def wifi(node: Node) -> Iterable[Hit]:
    pattern = r"oops|\bBUG\b|mt7925\w*\+0x|message timeout|hung|RIP|pc :"
    bad = [line for line in node.log("wifi") if re.search(pattern, line, re.IGNORECASE)]
    if bad:
        yield Hit("the Wi-Fi driver mt7925e crashed", evidence=bad[-1])


def unanswered(node: Node) -> Iterable[Hit]:
    network = value(node.facts.network)
    waiting = network.unanswered if network else ()
    if waiting:
        yield Hit(f"connections without an answer to {', '.join(waiting[:5])}")


def nccl_config(node: Node) -> Iterable[Hit]:
    nccl = value(node.facts.nccl)
    if nccl is None or nccl.config is None:
        return
    shown = ", ".join(f"{key}={text}" for key, text in sorted(nccl.config.items())) or "no settings"
    harmful = any(key in nccl.config for key in INLINE_PAIR)
    yield Hit(f"/etc/nccl.conf: {shown[:300]}", severity=E if harmful else W)


def nccl_parity(yard: Yard) -> Iterable[Hit]:
    def settings(node: Node) -> dict[str, str]:
        nccl = value(node.facts.nccl)
        return {**nccl.environment, **(nccl.config or {})} if nccl else {}

    known = {node.name: settings(node) for node in yard.seen if value(node.facts.nccl) is not None}
    for key in sorted({key for found in known.values() for key in found}):
        values = {name: found.get(key) for name, found in known.items()}
        if len(set(values.values())) > 1:
            shown = ", ".join(
                f"{name} {text if text is not None else 'unset'}" for name, text in values.items()
            )
            yield Hit(f"{key} differs: {shown}")


def _collective(container: Container) -> bool:
    """Runs something that talks over NCCL."""
    ours = any(key.startswith("sparkyard") for key in container.labels)
    return container.state == "running" and container.gpu and (ours or bool(container.environment))


def memlock(node: Node) -> Iterable[Hit]:
    docker = value(node.facts.docker)
    for item in docker.containers if docker else ():
        if _collective(item) and not item.privileged and item.memlock != -1:
            if item.memlock is not None and item.memlock >= MEMLOCK_BYTES:
                continue
            limit = "Docker's default" if item.memlock is None else f"{item.memlock} bytes"
            yield Hit(f"{item.name}: memlock {limit}", link=item.name)


def rdma_devices(node: Node) -> Iterable[Hit]:
    links, docker = links_of(node), value(node.facts.docker)
    driven = [item for item in node.functions if item.rdma]
    if links is not None and driven and (links.verbs < len(driven) or not links.rdma_cm):
        manager = "with" if links.rdma_cm else "without"
        yield Hit(
            f"{links.verbs} /dev/infiniband/uverbs devices for {len(driven)} functions, {manager} rdma_cm"
        )
    for item in docker.containers if docker else ():
        inside = any("infiniband/uverbs" in device for device in item.devices)
        if _collective(item) and not item.privileged and not inside and driven:
            yield Hit(f"{item.name}: no /dev/infiniband device in the container", link=item.name)


def registration(node: Node) -> Iterable[Hit]:
    probes = value(node.facts.probes)
    text = probes.allreduce.text if probes and probes.allreduce else ""
    lines = [*node.log("rdma"), *(line for line in text.splitlines() if IOVA2.search(line))]
    if lines:
        yield Hit("memory registration for RDMA fails", evidence=lines[-1])


def peermem(node: Node) -> Iterable[Hit]:
    kernel = value(node.facts.kernel)
    if kernel is not None and "nvidia" in kernel.modules and "nvidia_peermem" not in kernel.modules:
        yield Hit("nvidia_peermem is not loaded")


CHECKS = (
    Check(
        "net.ring_fwd",
        ("network", "forwarding"),
        "in a ring: ip_forward=1 and forwarding accepted",
        "packets between the two neighbours of a node are dropped",
        E,
        "sysctl -w net.ipv4.ip_forward=1; iptables -I DOCKER-USER -i DEVICE -o DEVICE -j ACCEPT",
        "https://github.com/FujitsuPolycom/sparkring/issues/174",
        within=lambda node, yard: ring_forwarding(node) if yard.topology == "ring" else (),
    ),
    Check(
        "net.ifname",
        ("network", "nccl"),
        "interfaces named to NCCL and Gloo exist and have an IPv4 address",
        "absent or without address",
        E,
        "correct the name for this node, or remove the setting: names are looked up on each node",
        "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/pull/10",
        within=interface_names,
    ),
    Check(
        "net.mgmt_driver",
        ("network",),
        "RJ45 port driven by r8127",
        "r8169: the port dies at a warm reboot",
        W,
        "blacklist r8169, then unplug the node for 30 s",
        f"{FORUM}360654",
        each=management_driver,
    ),
    Check(
        "net.hostname",
        ("host", "services"),
        "every host name once, and announced as it is",
        "announced with a number behind it, or used twice",
        W,
        "hostnamectl set-hostname NAME; look at cx7.nm_dhcp",
        f"{FORUM}377220",
        whole=hostname,
    ),
    Check(
        "net.wifi",
        ("kernel_log",),
        "no crash of the Wi-Fi driver",
        "mt7925e oops: it holds a lock that every network command needs",
        W,
        "use the wired management port; blacklist mt7925e",
        "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/pull/157",
        each=wifi,
    ),
    Check(
        "net.unanswered",
        ("network",),
        "no TCP connection waits for its first answer",
        "it waits: often NCCL or Gloo told to use an interface that the peer cannot reach",
        W,
        "check NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, and the firewall of the peer",
        "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/4",
        each=unanswered,
        confidence=Confidence.LOW,
    ),
    Check(
        "nccl.conf",
        ("nccl",),
        "no /etc/nccl.conf",
        "it silently adds settings; its inline-send pair freezes the warm-up",
        W,
        "move /etc/nccl.conf away",
        "https://github.com/luxingcom/aicad-nccl-optimization/issues/1",
        each=nccl_config,
    ),
    Check(
        "nccl.parity",
        ("nccl",),
        "the same NCCL settings on all nodes",
        "a setting differs or stands on some nodes only",
        W,
        "make them equal, or remove them: the profile sets what is needed",
        "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/12",
        whole=nccl_parity,
        needs_peers=True,
    ),
    Check(
        "rdma.memlock",
        ("docker",),
        "unlimited in containers that use NCCL",
        "limited: registration fails",
        E,
        "start the container with --ulimit memlock=-1",
        "https://github.com/heitor-mocelin/dgx-spark-research",
        each=memlock,
        only_docker=True,
    ),
    Check(
        "rdma.dev",
        ("links", "docker"),
        "one uverbs device for each function, and rdma_cm; both inside the container too",
        "absent: NCCL falls back to sockets and nobody notices",
        E,
        "start the container with --device /dev/infiniband/uverbs0 … and --device /dev/infiniband/rdma_cm",
        "https://github.com/heitor-mocelin/dgx-spark-research",
        each=rdma_devices,
    ),
    Check(
        "rdma.iova2",
        ("kernel_log", "probes"),
        "memory registration works",
        "ibv_reg_mr_iova2: Cannot allocate memory",
        E,
        "see kernel.bad and drm.modeset",
        "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14",
        each=registration,
    ),
    Check(
        "gpu.peermem",
        ("kernel",),
        "nvidia_peermem cannot be loaded on GB10",
        "never bad",
        N,
        "nothing: GPUDirect RDMA is not needed with unified memory",
        "https://github.com/vroomfondel/dgxarley",
        each=peermem,
    ),
)
