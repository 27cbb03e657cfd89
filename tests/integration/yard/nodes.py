"""Makes and removes the nodes of a yard: namespaces, cables, sshd. Idempotent in both directions."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from tests.integration.yard import state
from tests.integration.yard.layout import (
    CONTROLLER_ADDRESS,
    FABRIC_MTU,
    MANAGEMENT,
    Address,
    Layout,
    YardNode,
)
from tests.integration.yard.state import YardError, run

HERE = Path(__file__).resolve().parent
SSHD_WAIT_S = 20.0
NODE_MEMORY = "2g"
"""Bound of the tmpfs that takes a node's writes outside of its disk."""
CGROUPS = Path("/sys/fs/cgroup")
NO_CLOCK = ("setpriv", "--bounding-set", "-sys_time", "--inh-caps", "-sys_time")
"""In front of all that runs in a yard: there is no namespace for the clock, `date -s` sets the machine's."""


def namespaces() -> set[str]:
    """Names of all network namespaces of the host."""
    return {line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.strip()}


def up(layout: Layout) -> None:
    """Bring every node up; nodes that run already are left alone."""
    state.need_root()
    where = state.folder(layout.id)
    (where / "nodes").mkdir(parents=True, exist_ok=True)
    _keys(where, layout)
    _controller(layout)
    for node in layout.nodes:
        if state.process(where, node.name) is None:
            _network(layout, node)
    for node in layout.nodes:
        if state.process(where, node.name) is None:
            _start(where, layout, node)
    for node in layout.nodes:
        _await_sshd(where, layout, node)


def down(yard_id: str) -> None:
    """Take everything back: processes, namespaces (mounts go with them), cgroups, files."""
    state.need_root()
    where = state.folder(yard_id)
    for name in state.names(where):
        state.end(where, name)
    for namespace in sorted(name for name in namespaces() if name.startswith(f"{yard_id}-")):
        _remove(namespace)
    _remove_cgroups(yard_id)
    state.remove_tree(where)


def stop_node(layout: Layout, node: YardNode) -> None:
    """A node loses its power: all its processes, mounts and addresses vanish; its disk stays."""
    state.end(state.folder(layout.id), node.name)
    if node.namespace in namespaces():
        _remove(node.namespace)


def enter(layout: Layout, node: YardNode) -> list[str]:
    """Start of a command line that runs in the node, as its root."""
    outer = state.process(state.folder(layout.id), node.name)
    inner = state.child_of(outer.pid) if outer else None
    if inner is None:
        raise YardError(f"{node.name} is not up: run `up` first")
    return ["nsenter", "-t", str(inner), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--", *NO_CLOCK]


def controller(layout: Layout) -> list[str]:
    """Start of a command line that runs on the host, in the controller's network."""
    return ["ip", "netns", "exec", layout.controller, *NO_CLOCK]


def engine(layout: Layout, node: YardNode) -> None:
    """Start the node's own Docker engine."""
    parent = f"CGROUP_PARENT=/{cgroup(layout.id, node)}"
    tools = "/usr/local/libexec/yard/engine-start.sh"
    run(*enter(layout, node), "env", parent, tools, timeout_s=60)


def cgroup(yard_id: str, node: YardNode) -> str:
    """Parent of all cgroups of the node's containers."""
    return f"sparkyard-{yard_id}-{node.number}"


def _keys(where: Path, layout: Layout) -> None:
    """One login key of the yard and one host key a node, made once: a node made again keeps its host key."""
    wanted = [where / "id_ed25519"]
    for node in layout.nodes:
        (where / "nodes" / node.name / "overlay").mkdir(parents=True, exist_ok=True)
        wanted.append(where / "nodes" / node.name / "ssh_host_ed25519_key")
    for key in wanted:
        if not key.exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "yard", "-f", str(key))


def _controller(layout: Layout) -> None:
    """The controller's namespace with the management bridge, and the fabric switch if there is one."""
    there = namespaces()
    if layout.controller not in there:
        run("ip", "netns", "add", layout.controller)
        _ip(layout.controller, "link set lo up")
        _ip(layout.controller, "link add mgmt0 type bridge")
        _ip(layout.controller, f"addr add {CONTROLLER_ADDRESS}/24 dev mgmt0")
        _ip(layout.controller, "link set mgmt0 up")
    if layout.topology == "switch" and layout.switch not in there:
        run("ip", "netns", "add", layout.switch)
        for rail in sorted({link.cable for node in layout.nodes for link in node.fabric}):
            _ip(layout.switch, f"link add {rail} mtu {FABRIC_MTU} type bridge")
            _ip(layout.switch, f"link set {rail} up")


def _ip(namespace: str, words: str) -> None:
    run("ip", "-n", namespace, *words.split())


def _remove(namespace: str) -> None:
    """Unplug all cables of a namespace, then remove it.

    The kernel empties a removed namespace some time later; until then the far ends keep their names, and a cable
    that is made again fails with "File exists". A cable that is removed by name is gone with both ends at once.
    """
    for cable in json.loads(run("ip", "-n", namespace, "-json", "link", "show", "type", "veth") or "[]"):
        _ip(namespace, f"link del {cable['ifname']}")
    run("ip", "netns", "del", namespace)


def _network(layout: Layout, node: YardNode) -> None:
    """The node's namespace, its management port and its cables to nodes that are there already."""
    if node.namespace in namespaces():
        _remove(node.namespace)  # left behind by a node that died
    run("ip", "netns", "add", node.namespace)
    _ip(node.namespace, "link set lo up")
    _ip(
        layout.controller,
        f"link add m{node.number} type veth peer name {MANAGEMENT} netns {node.namespace}",
    )
    _ip(layout.controller, f"link set m{node.number} master mgmt0 up")
    _ip(node.namespace, f"addr add {node.management}/24 dev {MANAGEMENT}")
    _ip(node.namespace, f"link set {MANAGEMENT} up")
    for link in node.fabric:
        if layout.topology == "switch":
            port = f"p{node.number}{link.cable}"
            end = f"link add {port} mtu {FABRIC_MTU} type veth peer name {link.interface}"
            _ip(layout.switch, f"{end} mtu {FABRIC_MTU} netns {node.namespace}")
            _ip(layout.switch, f"link set {port} master {link.cable} up")
            _address(node, link.interface, link.address, link.prefix)
            continue
        other, far = _far_end(layout, node, link.cable)
        if other.namespace not in namespaces():
            continue  # the other end makes the cable when its node comes
        end = f"link add {link.interface} mtu {FABRIC_MTU} type veth peer name {far.interface}"
        _ip(node.namespace, f"{end} mtu {FABRIC_MTU} netns {other.namespace}")
        _address(node, link.interface, link.address, link.prefix)
        _address(other, far.interface, far.address, far.prefix)


def _far_end(layout: Layout, node: YardNode, cable: str) -> tuple[YardNode, Address]:
    for other in layout.nodes:
        for link in other.fabric:
            if link.cable == cable and other.name != node.name:
                return other, link
    raise YardError(f"{cable} of {node.name} has no other end")


def _address(node: YardNode, interface: str, address: str, prefix: int) -> None:
    _ip(node.namespace, f"addr add {address}/{prefix} dev {interface}")
    _ip(node.namespace, f"link set {interface} up")


def _start(where: Path, layout: Layout, node: YardNode) -> None:
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "NODE_NAME": node.name,
        "NODE_NUMBER": str(node.number),
        "NODE_DIR": str(where / "nodes" / node.name),
        "NODE_MEMORY": NODE_MEMORY,
        "YARD_TOOLS": str(HERE / "tools"),
        "AUTHORIZED_KEY": (where / "id_ed25519.pub").read_text().strip(),
    }
    argv = ["nsenter", f"--net=/run/netns/{node.namespace}"]
    argv += ["unshare", "-m", "-u", "-i", "-p", "-f", "--kill-child=KILL", "--propagation", "private"]
    argv += [*NO_CLOCK, "/bin/bash", str(HERE / "node-init.sh")]
    with (where / f"{node.name}.log").open("wb") as log:
        started = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    state.remember(where, node.name, started.pid)


def _await_sshd(where: Path, layout: Layout, node: YardNode) -> None:
    deadline = time.monotonic() + SSHD_WAIT_S
    while True:
        if state.process(where, node.name) is None:
            log = (where / f"{node.name}.log").read_text(errors="replace")[-800:]
            raise YardError(f"{node.name} ended while it came up:\n{log}")
        try:
            sockets = run(*enter(layout, node), "ss", "-Hltn", "sport", "=", "22")
        except YardError:
            sockets = ""
        if ":22" in sockets and "Server listening" in (where / f"{node.name}.log").read_text(
            errors="replace"
        ):
            return
        if time.monotonic() > deadline:
            raise YardError(
                f"sshd of {node.name} does not listen after {SSHD_WAIT_S:.0f} s; see {where}/{node.name}.log"
            )
        time.sleep(0.05)


def _remove_cgroups(yard_id: str) -> None:
    for top in CGROUPS.glob(f"*/sparkyard-{yard_id}-*"):
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()
