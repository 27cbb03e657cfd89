"""The yard itself: what it promises to the other tests, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import asyncssh
import pytest
import yaml

from orchestrator.model.cluster import Cluster
from tests.integration.yard import nodes, state
from tests.integration.yard.layout import MANAGEMENT, plan
from tests.integration.yard.session import Yard, yard

CAP_SYS_TIME = 25


def test_the_cluster_file_is_valid(yard2: Yard) -> None:
    cluster = Cluster.model_validate(yaml.safe_load(yard2.cluster.read_text()))
    assert [node.name for node in cluster.nodes] == ["spark-1", "spark-2"]
    assert yard2.cluster.stat().st_mode & 0o077 == 0


def test_a_node_can_not_set_the_clock(yard2: Yard) -> None:
    status = yard2.run("spark-1", "cat", "/proc/self/status")
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)
    assert not effective >> CAP_SYS_TIME & 1


def test_openssh_keeps_its_default_limits(openssh: Yard) -> None:
    """Ten sessions a connection, the eleventh is refused: what the transport has to live with."""

    async def sessions() -> tuple[int, str]:
        node = openssh.layout.nodes[0]
        key = str(openssh.folder / "id_ed25519")
        known = str(openssh.folder / "known_hosts")
        async with asyncssh.connect(
            node.management, username="root", client_keys=[key], known_hosts=known, config=None
        ) as connection:
            opened = 0
            try:
                for _ in range(12):
                    await connection.create_process("cat")
                    opened += 1
            except asyncssh.ChannelOpenError as error:
                return opened, str(error)
            return opened, ""

    opened, refusal = asyncio.run(sessions())
    assert opened == 10
    assert refusal


def test_links_carry_jumbo_frames_and_ports_look_like_connectx(yard2: Yard) -> None:
    peer = yard2.layout.nodes[1]
    for link in peer.fabric:
        out = yard2.run("spark-1", "ping", "-c1", "-W1", "-M", "do", "-s", "8972", link.address)
        assert "1 received" in out
    assert "4: ACTIVE" in yard2.run("spark-1", "cat", "/sys/class/infiniband/rocep1s0f0/ports/1/state")
    assert yard2.run("spark-1", "cat", "/sys/class/net/enp1s0f0np0/speed").strip() == "200000"
    assert yard2.run("spark-1", "cat", f"/sys/class/net/{MANAGEMENT}/operstate").strip() == "up"


@pytest.mark.parametrize("topology", ["triangle", "ring"])
def test_a_node_made_again_keeps_its_disk_its_key_and_its_cables(need_root: None, topology: str) -> None:
    with yard("again", 3, topology) as made:  # type: ignore[arg-type]
        key = (made.folder / "nodes/spark-2/ssh_host_ed25519_key.pub").read_text()
        made.run("spark-2", "sh", "-c", "echo kept >/srv/nvme/file; echo lost >/root/file")
        made.power_off("spark-2")
        with pytest.raises(state.YardError, match="spark-2 is not up"):
            made.run("spark-2", "true")
        made.heal()
        assert made.run("spark-2", "cat", "/srv/nvme/file") == "kept\n"
        assert made.run("spark-2", "ls", "/root").strip() == ""
        assert (made.folder / "nodes/spark-2/ssh_host_ed25519_key.pub").read_text() == key
        for link in made.layout.node("spark-2").fabric:
            other = next(
                far.address
                for node in made.layout.nodes
                for far in node.fabric
                if far.cable == link.cable and node.name != "spark-2"
            )
            assert "1 received" in made.run("spark-2", "ping", "-c1", "-W1", other)


def test_nothing_stays(need_root: None) -> None:
    with yard("gone", 2, "switch", docker=True) as made:
        pids = [state.process(made.folder, name) for name in state.names(made.folder)]
        made.run("spark-1", "sh", "-c", "sleep 300 >/dev/null 2>&1 &")
    assert not any(process.alive for process in pids if process is not None)
    assert not [name for name in nodes.namespaces() if name.startswith("gone-")]
    assert not made.folder.exists()
    assert "sparkyard-yard-gone" not in Path("/proc/mounts").read_text()
    assert not list(Path("/sys/fs/cgroup").glob("*/sparkyard-gone-*"))
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "/run/netns/gone-" not in listed
    nodes.down("gone")  # taking down what is not there is fine


@pytest.mark.parametrize(
    ("yard_id", "count", "topology", "message"),
    [
        ("a", 4, "triangle", "a triangle has 3 to 3 nodes"),
        ("a", 2, "ring", "a ring has 3 to 8 nodes"),
        ("Big Name", 2, "switch", "up to 8 lower-case"),
    ],
)
def test_a_shape_that_can_not_be_is_refused(yard_id: str, count: int, topology: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(yard_id, count, topology)  # type: ignore[arg-type]
