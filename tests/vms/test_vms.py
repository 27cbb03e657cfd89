"""share with the kernel's own NFS server and client, the monitor as a unit of systemd, and a reboot of both machines.

One story on two virtual machines, in order: what the yard's nodes, which are namespaces, cannot show.
Needs root and `tests/integration/install.sh vm`; uses KVM where the processor has it, else emulation.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Event, StepDone
from orchestrator.model.facts import NodeFacts
from orchestrator.model.profile import Profile
from orchestrator.run import observe
from orchestrator.verbs import Answer, Session, converging
from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import write_checkpoint
from tests.integration.yard import vms
from tests.integration.yard.session import network
from tests.vms import product

pytestmark = pytest.mark.unproven

OWNER = 1234
REPOSITORY = "/home/owner/hub/models--sparkyard--lab"
SNAPSHOT = f"{REPOSITORY}/snapshots/abc"
MOUNT = "/srv/sparkyard/share/nfs"
FLEET = "/root/fleet"
UNIT = "sparkyard-monitor-lab.service"
METRICS = "exec 3<>/dev/tcp/127.0.0.1/9477 && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
SEEN_BOUND_S = 180.0
"""An emulated Python needs half a minute to load the monitor and its agents."""


@dataclass
class Machines:
    """Both, and a profile."""

    vms: vms.Vms
    share: dict[str, object] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def profile(self) -> Profile:
        body = load_profile("lab").model_dump(mode="json", by_alias=True)
        body["parallel"] = {"tp": 2, "padding": None}
        body["share"] |= self.share
        return Profile.model_validate(body)

    def session(self) -> Session:
        return Session(
            self.profile(), load_cluster(self.vms.cluster), self.events.append, strict_conformance=True
        )

    def do(self, verb: str) -> Answer:
        with network(self.vms.namespace):
            return asyncio.run(converging(self.session(), verb))

    def client(self) -> NodeFacts:
        async def go() -> NodeFacts:
            async with self.session().world() as world:
                return (await observe(world))["spark-2"]

        with network(self.vms.namespace):
            return asyncio.run(go())

    def place(self, path: str) -> None:
        """Which folder of the first machine the cluster file names."""
        body = yaml.safe_load(self.vms.cluster.read_text())
        body["checkpoint"]["path"] = path
        self.vms.cluster.write_text(yaml.safe_dump(body, sort_keys=False))

    def said(self) -> list[str]:
        """What the steps of the last verbs told."""
        return [str(event.result) for event in self.events if isinstance(event, StepDone)]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    name = f"v{os.getpid() % 1_000_000}"
    try:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            made = Machines(vms.up(name, [product.disk(Path(folder))]))
            _fill(made.vms, Path(folder))
            yield made
    finally:
        vms.down(name)


def _fill(made: vms.Vms, folder: Path) -> None:
    """A checkpoint as a cache's snapshot, in a home with 0750, files with 0600."""
    layout = Layout.build(layer_ids=(1, 3), vocab_size=200, max_ngram_size=4, heads=8)
    write_checkpoint(folder / "checkpoint", layout, 200)
    made.put(1, shutil.make_archive(f"{folder}/files", "tar", folder / "checkpoint"), "/root/files.tar")
    made.run(
        1,
        f"useradd -m -u {OWNER} owner && install -d -o owner {REPOSITORY}/blobs {SNAPSHOT} && cd {SNAPSHOT} && "
        "tar -xf /root/files.tar && rm /root/files.tar && sha256sum * | while read -r digest file; do "
        "mv $file ../../blobs/$digest; ln -s ../../blobs/$digest $file; done; "
        "chown -R owner:owner /home/owner && chmod 750 /home/owner && chmod 600 ../../blobs/*",
        timeout_s=300,
    )


def test_a_cache_snapshot_in_a_closed_home_is_shared_and_proven(machines: Machines) -> None:
    machines.place(SNAPSHOT)
    machines.share = {"rsize_bytes": 1 << 20, "nconnect": 4}
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    here = machines.client()
    assert here.share is not None
    assert (here.share.problem, here.share.server) == ("", "192.168.101.21")
    assert {"vers=4.2", "nconnect=4", "proto=tcp", "ro"} <= set(here.share.options.split(","))
    assert here.proof is not None
    assert here.checkpoint is not None
    assert here.checkpoint.problems == ()
    # A server with 1 GiB grants smaller reads than asked for: said, not swallowed.
    assert any("asked for rsize=1048576, got rsize=" in words for words in here.share.fallbacks)
    assert any("asked for rsize=1048576, got rsize=" in words for words in machines.said())
    modes = machines.vms.run(1, f"stat -c %a /home/owner; stat -c %a {REPOSITORY}/blobs/* | sort -u").split()
    assert modes == ["750", "600"]
    exported = machines.vms.run(1, "exportfs -s")
    assert f"{REPOSITORY}  192.168.101.22(" in exported
    assert f"anonuid={OWNER}" in exported
    assert "all_squash" in exported
    assert machines.do("share").data["stages"] == []


def test_a_server_that_restarts_is_no_harm(machines: Machines) -> None:
    machines.vms.run(1, "systemctl restart nfs-server")
    read = f"cat {MOUNT}/snapshots/abc/model.safetensors.index.json | wc -c"
    assert int(machines.vms.run(2, f"echo 3 >/proc/sys/vm/drop_caches; {read}")) > 0
    assert machines.do("share").data["stages"] == []


def test_rdma_that_is_not_there_falls_back_to_tcp_and_is_named(machines: Machines) -> None:
    machines.vms.run(2, f"umount {MOUNT}")
    machines.share = {"proto": "rdma"}
    machines.events.clear()
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    here = machines.client()
    assert here.share is not None
    assert "proto=tcp" in here.share.options
    assert any("proto=rdma was refused" in words for words in machines.said())
    assert any("asked for proto=rdma, got proto=tcp" in words for words in here.share.fallbacks)


def test_the_monitor_is_a_unit_that_systemd_has_nothing_to_say_about(machines: Machines) -> None:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the machines have Debian's Python 3.11, these packages are for another one")
    machines.share = {}
    folder = machines.vms.folder
    body = yaml.safe_load(machines.vms.cluster.read_text())
    for node in body["nodes"]:
        node["key"] = f"{FLEET}/key"
    (folder / "fleet").mkdir()
    (folder / "fleet/cluster.yaml").write_text(yaml.safe_dump(body))
    profile = machines.profile().model_dump(mode="json", by_alias=True)
    (folder / "fleet/profile.yaml").write_text(yaml.safe_dump(profile))
    shutil.copy(folder / "id_ed25519", folder / "fleet/key")
    tar = shutil.make_archive(f"{folder}/fleet", "tar", folder / "fleet")
    machines.vms.put(1, tar, "/root/fleet.tar")
    words = f"monitor --install --profile {FLEET}/profile.yaml --cluster {FLEET}/cluster.yaml"
    said = machines.vms.run(
        1,
        f"umask 077; mkdir {FLEET} && tar -xf /root/fleet.tar -C {FLEET} && chmod 600 {FLEET}/* && "
        f"cd {product.PLACE} && {product.PYTHON} -m orchestrator {words} 2>&1",
        timeout_s=300,
    )
    assert f"{UNIT}: enabled and started" in said
    verified = machines.vms.run(1, f"systemd-analyze verify --man=no /etc/systemd/system/{UNIT} 2>&1")
    assert verified == ""
    assert watched(machines) == 0


def test_after_a_reboot_of_both_the_share_and_the_monitor_are_back(machines: Machines) -> None:
    machines.vms.reboot(1, 2)
    machines.vms.run(
        2, f"for i in $(seq 60); do mountpoint -q {MOUNT} && exit 0; sleep 1; done; exit 1", timeout_s=200
    )
    if sys.version_info[:2] == (3, 11):
        assert watched(machines) == 0
        machines.vms.run(1, f"systemctl disable --now {UNIT}")
    assert machines.do("share").data["stages"] == []


def watched(machines: Machines) -> int:
    """Wait until the monitor sees both machines; how often systemd had to start it again."""
    deadline = time.monotonic() + SEEN_BOUND_S
    while True:
        state = machines.vms.run(1, f"systemctl is-active {UNIT}", check=False).strip()
        page = machines.vms.run(1, f'bash -c "{METRICS}"', check=False)
        if all(f'sparkyard_node_up{{node="spark-{number}"}} 1.0' in page for number in (1, 2)):
            assert state == "active"
            return int(machines.vms.run(1, f"systemctl show --property NRestarts --value {UNIT}"))
        assert state in {"active", "activating"}, machines.vms.run(1, f"journalctl -u {UNIT}")
        assert time.monotonic() < deadline, page[-1000:]
        time.sleep(2)


def test_unshare_takes_it_back_from_both(machines: Machines) -> None:
    answer = machines.do("unshare")
    assert answer.exit_code == 0, answer.data["failures"]
    assert MOUNT not in machines.vms.run(2, "cat /proc/mounts /etc/fstab")
    assert "models--" not in machines.vms.run(1, "exportfs -s; ls /etc/exports.d; cat /var/lib/nfs/etab")
