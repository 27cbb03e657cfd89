"""share with the kernel's own NFS server and client: what a mount becomes, and what it lives through.

One story on two virtual machines, in order. Needs root and
`tests/integration/install.sh vm`; uses KVM where the processor has it, else emulation.
"""

from __future__ import annotations

import json

from tests.vms.machines import BOUND_S, MOUNT, OWNER, REPOSITORY, Machines, needs_patience

SOFT_ROCE = (
    "modprobe -a ib_uverbs rdma_ucm rdma_rxe rpcrdma && rdma link add rxe0 type rxe netdev enp1s0f0np0"
)


def mounted(machines: Machines) -> set[str]:
    """Options of the share's mount on the second machine, as its kernel shows them."""
    (line,) = machines.vms.run(2, f"grep ' {MOUNT} nfs4 ' /proc/mounts").splitlines()
    return set(line.split(" ")[3].split(","))


def test_rdma_that_is_not_there_falls_back_to_tcp_and_is_named(machines: Machines) -> None:
    machines.share = {"proto": "rdma"}
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    (attached,) = (words for words in machines.said() if "proto" in words)
    assert "proto=rdma was refused" in attached
    assert "asked for proto=rdma, got proto=tcp" in attached
    # the network of the fast ports, not the other one that both are in
    assert {"proto=tcp", "ro", "vers=4.2", "addr=192.168.101.21"} <= mounted(machines)


def test_rdma_is_used_where_both_ends_have_it(machines: Machines) -> None:
    """Soft RoCE: the kernel's own RDMA over Ethernet."""
    for number in (1, 2):
        machines.vms.run(number, SOFT_ROCE)
    machines.vms.run(1, "echo 'rdma 20049' >/proc/fs/nfsd/portlist")
    machines.vms.run(2, f"umount {MOUNT}")
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    assert not any("proto" in words for words in machines.said())
    assert {"proto=rdma", "port=20049"} <= mounted(machines)


def test_a_cache_snapshot_in_a_closed_home_is_shared_and_proven(machines: Machines) -> None:
    machines.share = {"rsize_bytes": 1 << 20, "nconnect": 4}
    machines.vms.run(2, "rm /srv/sparkyard/share/proof.json")
    answer = machines.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    assert {"vers=4.2", "nconnect=4", "proto=tcp", "ro"} <= mounted(machines)
    # A server with so little memory grants smaller reads than asked for: said, not swallowed.
    assert any("asked for rsize=1048576, got rsize=" in words for words in machines.said())
    proofs = [machines.vms.run(number, "cat /srv/sparkyard/share/proof.json") for number in (1, 2)]
    assert len({json.loads(proof)["blocks_sha256"] for proof in proofs}) == 1
    modes = machines.vms.run(1, f"stat -c %a /home/owner; stat -c %a {REPOSITORY}/blobs/* | sort -u").split()
    assert modes == ["750", "600"]
    exported = machines.vms.run(1, "exportfs -s")
    assert f"{REPOSITORY}  192.168.101.22(" in exported
    assert f"anonuid={OWNER}" in exported
    assert "all_squash" in exported


def test_a_server_that_restarts_is_no_harm(machines: Machines) -> None:
    machines.vms.run(1, "systemctl restart nfs-server")
    index = f"{MOUNT}/snapshots/abc/model.safetensors.index.json"
    assert machines.vms.run(2, f"dd if={index} bs=4096 count=1 iflag=direct status=none | head -c 1") == "{"
    assert machines.do("share").data["stages"] == []


@needs_patience
def test_after_a_reboot_of_both_the_share_is_back_by_itself(machines: Machines) -> None:
    machines.vms.reboot(1, 2)
    machines.until(2, "cat /proc/mounts", f" {MOUNT} nfs4 ", BOUND_S)
    assert "nconnect=4" in mounted(machines)
    assert machines.do("share").data["stages"] == []


def test_unshare_takes_it_back_from_both(machines: Machines) -> None:
    answer = machines.do("unshare")
    assert answer.exit_code == 0, answer.data["failures"]
    assert MOUNT not in machines.vms.run(2, "cat /proc/mounts /etc/fstab")
    assert "models--" not in machines.vms.run(1, "exportfs -s; ls /etc/exports.d; cat /var/lib/nfs/etab")
