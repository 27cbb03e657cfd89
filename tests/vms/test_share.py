"""share with the kernel's own NFS server and client: what a mount becomes, and what it lives through.

One story on two virtual machines, in order; it goes on in `test_watch.py`. Needs root and
`tests/integration/install.sh vm`; uses KVM where the processor has it, else emulation.
"""

from __future__ import annotations

import pytest

from tests.vms.machines import MOUNT, OWNER, REPOSITORY, Machines

pytestmark = pytest.mark.unproven

SOFT_ROCE = (
    "modprobe -a ib_uverbs rdma_ucm rdma_rxe rpcrdma && rdma link add rxe0 type rxe netdev enp1s0f0np0"
)


def test_rdma_that_is_not_there_falls_back_to_tcp_and_is_named(machines: Machines) -> None:
    machines.share = {"proto": "rdma"}
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    assert any("proto=rdma was refused" in words for words in machines.said())
    here = machines.facts()["spark-2"].share
    assert here is not None
    assert (here.problem, here.server) == ("", "192.168.101.21")
    assert "proto=tcp" in here.options
    assert any("asked for proto=rdma, got proto=tcp" in words for words in here.fallbacks)


def test_rdma_is_used_where_both_ends_have_it(machines: Machines) -> None:
    """Soft RoCE: the kernel's own RDMA over Ethernet."""
    for number in (1, 2):
        machines.vms.run(number, SOFT_ROCE)
    machines.vms.run(1, "echo 'rdma 20049' >/proc/fs/nfsd/portlist")
    machines.vms.run(2, f"umount {MOUNT}")
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    here = machines.facts()["spark-2"].share
    assert here is not None
    assert "proto=rdma" in here.options
    assert not any("proto" in words for words in here.fallbacks)
    machines.vms.run(2, f"umount {MOUNT} && rdma link delete rxe0")


def test_a_cache_snapshot_in_a_closed_home_is_shared_and_proven(machines: Machines) -> None:
    machines.share = {"rsize_bytes": 1 << 20, "nconnect": 4}
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    here = machines.facts()["spark-2"]
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


def test_a_server_that_restarts_is_no_harm(machines: Machines) -> None:
    machines.vms.run(1, "systemctl restart nfs-server")
    read = f"cat {MOUNT}/snapshots/abc/model.safetensors.index.json | wc -c"
    assert int(machines.vms.run(2, f"echo 3 >/proc/sys/vm/drop_caches; {read}")) > 0
    assert machines.do("share").data["stages"] == []
