"""share with the kernel's own NFS server and client, under systemd: what the yard's nodes cannot show.

One story on two machines, in order. Not part of the gate: on the machine at hand the boots took ten minutes of a
shared CPU and the story was not yet seen to its end. Needs root and `tests/integration/install.sh vm`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Event
from orchestrator.model.facts import NodeFacts
from orchestrator.model.profile import Profile
from orchestrator.run import observe
from orchestrator.verbs import Answer, Session, converging
from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import write_checkpoint
from tests.integration.yard import state, vms
from tests.integration.yard.session import network

OWNER = 1234
REPOSITORY = "/home/owner/hub/models--sparkyard--lab"
SNAPSHOT = f"{REPOSITORY}/snapshots/abc"
MOUNT = "/srv/sparkyard/share/nfs"


@dataclass
class Machines:
    """Both, and a profile."""

    vms: vms.Vms
    share: dict[str, object] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def session(self) -> Session:
        body = load_profile("lab").model_dump(mode="json", by_alias=True)
        body["parallel"] = {"tp": 2, "padding": None}
        body["share"] |= self.share
        cluster = load_cluster(self.vms.cluster)
        return Session(Profile.model_validate(body), cluster, self.events.append, strict_conformance=True)

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
        text = self.vms.cluster.read_text()
        before = text.rpartition("path: ")[0]
        self.vms.cluster.write_text(f"{before}path: {path}\n")


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    name = f"v{os.getpid() % 1_000_000}"
    try:
        made = Machines(vms.up(name))
        _fill(made.vms)
        yield made
    finally:
        vms.down(name)


def _fill(made: vms.Vms) -> None:
    """A checkpoint as a cache's snapshot, in a home with 0750, files with 0600."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "checkpoint"
        write_checkpoint(
            plain, Layout.build(layer_ids=(1, 3), vocab_size=200, max_ngram_size=4, heads=8), 200
        )
        tar = shutil.make_archive(f"{folder}/files", "tar", plain)
        key, known = made.folder / "id_ed25519", made.folder / "known_hosts"
        argv = [
            "ip",
            "netns",
            "exec",
            made.namespace,
            "scp",
            "-q",
            "-o",
            f"UserKnownHostsFile={known}",
            "-i",
            str(key),
        ]
        state.run(*argv, tar, "root@10.77.0.21:/root/files.tar", timeout_s=300)
    made.run(
        1,
        f"useradd -m -u {OWNER} owner && chmod 750 /home/owner && install -d -o owner {REPOSITORY}/blobs {SNAPSHOT} && "
        f"cd {SNAPSHOT} && tar -xf /root/files.tar && for f in *; do d=$(sha256sum $f | cut -c1-64); "
        f"mv $f ../../blobs/$d; ln -s ../../blobs/$d $f; done; cp -rL {SNAPSHOT} /home/owner/plain && "
        "chown -R owner:owner /home/owner && chmod 600 /home/owner/plain/* && chmod 600 ../../blobs/*",
        timeout_s=300,
    )


def test_a_cache_snapshot_in_a_closed_home_is_shared_and_proven(machines: Machines) -> None:
    machines.place(SNAPSHOT)
    machines.share = {"rsize_bytes": 1 << 20, "nconnect": 4}
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    here = machines.client()
    assert here.share is not None
    assert here.share.problem == ""
    assert "vers=4.2" in here.share.options
    assert "nconnect=4" in here.share.options
    assert here.proof is not None
    assert here.checkpoint is not None
    assert here.checkpoint.problems == ()
    assert machines.do("share").data["stages"] == []
    # A server with 1 GiB grants smaller reads than asked for: said, not swallowed.
    assert any("rsize" in words for words in here.share.fallbacks)


def test_a_server_that_restarts_is_no_harm(machines: Machines) -> None:
    machines.vms.run(1, "systemctl restart nfs-server")
    assert (
        machines.vms.run(2, f"cat {MOUNT}/snapshots/abc/model.safetensors.index.json | wc -c").strip() != "0"
    )
    assert machines.do("share").data["stages"] == []


def test_rdma_that_is_not_there_falls_back_to_tcp_and_is_named(machines: Machines) -> None:
    machines.vms.run(2, f"umount {MOUNT}")
    machines.share = {"proto": "rdma"}
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    here = machines.client()
    assert here.share is not None
    assert "proto=tcp" in here.share.options
    assert any("proto=rdma" in words for words in here.share.fallbacks)
    machines.share = {}


def test_after_a_reboot_the_share_comes_back_by_itself(machines: Machines) -> None:
    machines.vms.reboot(2)
    machines.vms.run(
        2, f"for i in $(seq 60); do mountpoint -q {MOUNT} && exit 0; sleep 1; done; exit 1", timeout_s=200
    )
    assert machines.do("share").data["stages"] == []


def test_unshare_takes_it_back_from_both(machines: Machines) -> None:
    answer = machines.do("unshare")
    assert answer.exit_code == 0, answer.data["failures"]
    assert MOUNT not in machines.vms.run(2, "cat /proc/mounts /etc/fstab")
    assert "models--" not in machines.vms.run(1, "exportfs -s; ls /etc/exports.d; cat /var/lib/nfs/etab")


def test_plain_files_of_0600_in_that_home_are_read_too(machines: Machines) -> None:
    machines.place("/home/owner/plain")
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    assert machines.do("unshare").exit_code == 0
