"""An ordinary account with exactly the rights that `enroll` installs: all works, and each right taken away is named.

One yard; its nodes get the account `spark`, which may use sudo with its password until it is enrolled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import first_contact
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.profile import Profile
from orchestrator.remote.node import Ask, Reply, reply
from orchestrator.remote.nodes import nodes
from orchestrator.rights import Wanted, enroll_rights
from orchestrator.verbs import Answer, Session, converging
from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import write_checkpoint
from tests.integration.yard.session import Yard, network, yard

PASSWORD = "a-password-of-one-test"
PORT = 2222
ACCOUNT = "spark"
LIST = "/etc/sudoers.d/sparkyard"
DEVICES = ("enp1s0f0np0", "enp1s0f1np1")
REVERT_S = 1.0
# A user, sudo by password, an SSH server that takes passwords, and what a yard's node lacks of a Spark.
PREPARE = r"""
set -eu
useradd -m -s /bin/bash spark && usermod -aG sudo spark && echo "spark:$1" | chpasswd
: >/home/spark/.bashrc; : >/home/spark/.profile
install -d -o spark -g spark /srv/nvme/sparkyard
printf '%s\n' 'Port 2222' 'HostKey /etc/ssh/keys/ssh_host_ed25519_key' 'PasswordAuthentication yes' 'UsePAM no' \
  'PidFile /run/sshd2.pid' >/etc/ssh/sshd_users
/usr/sbin/sshd -f /etc/ssh/sshd_users
mount -t tmpfs tmpfs /sys/bus/pci/devices
for port in 0 1; do
  place=/sys/bus/pci/devices/0000:01:00.$port
  mkdir -p $place/net/enp1s0f${port}np$port
  echo 0x15b3 >$place/vendor; echo 0x1021 >$place/device
done
mkdir -p /sys/class/nvme/nvme0
printf '#!/bin/sh\necho "{\\"critical_warning\\": 0, \\"media_errors\\": 0}"\n' >/usr/sbin/nvme
printf '#!/bin/sh\nmkdir -p /etc/cdi; id -u >/etc/cdi/nvidia.yaml\n' >/usr/bin/nvidia-ctk
rm -f /usr/bin/timedatectl; printf '#!/bin/sh\nid -u >/run/ntp-switched-on\n' >/usr/bin/timedatectl
cp /usr/sbin/sysctl /usr/local/sbin/sysctl.real; rm /usr/sbin/sysctl
# settings below vm belong to the whole machine: not from here
printf '%s\n' '#!/bin/sh' 'case "$2" in vm.*) id -u >/run/caches-dropped;;' \
  '*) exec /usr/local/sbin/sysctl.real "$@";; esac' >/usr/sbin/sysctl
chmod 755 /usr/sbin/nvme /usr/bin/nvidia-ctk /usr/bin/timedatectl /usr/sbin/sysctl
"""


@dataclass
class Site:
    """Two enrolled nodes."""

    yard: Yard
    cluster: Path
    profile: Profile
    rights: dict[str, dict[str, str]]
    """Node → name of a right → its command line."""

    @contextmanager
    def without(self, node: str, name: str) -> Iterator[str]:
        """One line of the list is not there; its command line."""
        listed = self.yard.run(node, "cat", LIST)
        line = self.rights[node][name]
        kept = [row for row in listed.splitlines() if plain(row) != line]
        assert len(kept) == len(listed.splitlines()) - 1, name
        self._put(node, "\n".join(kept) + "\n")
        try:
            yield line
        finally:
            self._put(node, listed)

    def _put(self, node: str, text: str) -> None:
        self.yard.run(node, "sh", "-c", f"umask 337; cat >{LIST}.new; mv {LIST}.new {LIST}", stdin=text)

    def ask(self, node: str, *requests: tuple[str, dict[str, Any]]) -> list[Reply]:
        """Ask the agent, which runs as the account."""

        async def work() -> list[Reply]:
            asked = nodes(load_cluster(self.cluster))[node]
            try:
                return [await reply(asked, Ask(what, args), timeout_s=60.0) for what, args in requests]
            finally:
                await asked.close()

        with network(self.yard.layout.controller):
            return asyncio.run(work())

    def do(self, verb: str) -> Answer:
        """Run a verb as the command line does."""
        session = Session(self.profile, load_cluster(self.cluster), lambda _: None, strict_conformance=True)
        with network(self.yard.layout.controller):
            return asyncio.run(converging(session, verb))

    def refusals(self, verb: str) -> list[tuple[str, str]]:
        """Why a verb failed, as (node, message)."""
        answer = self.do(verb)
        assert answer.exit_code == 1, answer.data
        return [(item["node"], item["message"]) for item in answer.data["failures"]]


def plain(row: str) -> str:
    """The command line of a line of sudoers."""
    return row.partition("NOPASSWD: ")[2].replace("\\", "")


@pytest.fixture(scope="module")
def site(need_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("rights")
    with yard("rights", 2, "switch") as made:
        names = [node.name for node in made.layout.nodes]
        for name in names:
            made.run(name, "sh", "-c", PREPARE, "sh", PASSWORD)
        layout = Layout.build(layer_ids=(1, 3), vocab_size=200, max_ngram_size=4, heads=8)
        write_checkpoint(made.disk(names[0]) / "checkpoint", layout, 200)
        data = {
            "schema": "sparkyard/cluster/v1",
            "topology": "switch",
            "head": names[0],
            "checkpoint": {"node": names[0], "path": "/srv/nvme/checkpoint"},
            "nodes": [
                {
                    "name": node.name,
                    "address": node.management,
                    "port": PORT,
                    "user": ACCOUNT,
                    "root": "/srv/nvme/sparkyard",
                }
                for node in made.layout.nodes
            ],
        }
        place = folder / "cluster.yaml"
        first_contact.write(data, place, force=False)
        body = load_profile("lab").model_dump(mode="json", by_alias=True)
        body["parallel"] = {"tp": 2, "padding": None}
        profile = Profile.model_validate({**body, "name": "rights"})
        with network(made.layout.controller):
            yield enrolled(made, place, profile)


def enrolled(made: Yard, place: Path, profile: Profile) -> Site:
    """Bring key and rights to both nodes, by password; what was asked and shown is checked on the way."""
    data = first_contact.enroll_all(place, None, lambda *_: True, lambda _: PASSWORD)
    assert data["failures"] == []
    shown: list[Wanted] = []
    asked: list[str] = []

    def agree(wanted: Wanted) -> bool:
        shown.append(wanted)
        return True

    def password(prompt: str) -> str:
        asked.append(prompt)
        return PASSWORD if len(asked) > 1 else "wrong"

    cluster = load_cluster(place)
    declined = enroll_rights(cluster, profile, None, lambda _: False, pytest.fail)
    assert [item["state"] for item in declined] == ["declined", "declined"]
    assert all(len(item["missing"]) == len(item["rights"]) for item in declined)
    wrong = enroll_rights(cluster, profile, {"spark-1"}, agree, password)
    assert wrong[0]["message"] == "spark-1: sudo refused the password; nothing was installed"
    done = enroll_rights(cluster, profile, None, agree, password)
    assert [item["state"] for item in done] == ["installed", "installed"], done
    assert asked[0].startswith("sudo password of spark@")
    for item, wanted in zip(done, shown[1:], strict=True):
        assert made.run(item["node"], "cat", LIST) == wanted.order.sudoers == item["files"][LIST]
        made.run(item["node"], "gpasswd", "-d", ACCOUNT, "sudo")  # whoever enrolled it is not needed any more
    rights = {
        item["node"]: {right["name"]: " ".join(right["argv"]) for right in item["rights"]} for item in done
    }
    return Site(made, place, profile, rights)


def error_of(answer: Reply, fact: str) -> dict[str, Any]:
    assert answer.failure is None, answer.failure
    found: dict[str, Any] = answer.value["hardware"]["facts"][fact]["error"] or {}
    return found


def test_the_account_is_ordinary_and_may_do_the_listed_lines_and_nothing_else(site: Site) -> None:
    answer = site.ask("spark-1", ("facts", {}))[0]
    assert answer.value["host"]["user"] == ACCOUNT
    refused = [
        "id",
        f"ip link set dev {DEVICES[0]} mtu 1400",
        f"ip link set dev {DEVICES[0]} mtu 9000 up",
        "ip link set dev enP7s7 mtu 1500",
        "sysctl -w kernel.panic=1",
        "exportfs -o rw,no_root_squash *:/",
        "mount -t tmpfs none /etc",
        "install -m 0644 /tmp/x /etc/exports.d/sparkyard.exports",
        "rm -f /etc/passwd",
    ]
    for line in refused:
        done = site.yard.run("spark-1", "su", ACCOUNT, "-c", f"sudo -n {line} 2>&1; echo $?")
        assert done.strip().endswith("1"), (line, done)
    for node, places in (
        ("spark-1", [LIST, "/etc/sparkyard/exports", "/etc/exports.d", "/etc/sparkyard"]),
        ("spark-2", [LIST, "/etc/fstab", "/var/lib/sparkyard/nfs", "/var/lib/sparkyard"]),
    ):
        for path in places:
            assert site.yard.run(node, "stat", "-c", "%U", path).strip() == "root"
            said = site.yard.run(node, "su", ACCOUNT, "-c", f"test -w {path} && echo writable || echo no")
            assert said.strip() == "no", path


def test_facts_that_need_root_are_read_and_each_missing_right_is_named(site: Site) -> None:
    look = ("facts", {"hardware": True})
    whole = site.ask("spark-1", look)[0]
    assert [error_of(whole, fact).get("kind") for fact in ("smart", "forwarding")] == [None, None]
    assert whole.value["hardware"]["facts"]["smart"]["value"] == {
        "nvme0": {"critical_warning": 0, "media_errors": 0}
    }
    assert error_of(whole, "plugs").get("kind") != "right"
    wanted = {f"plug {device}": "plugs" for device in DEVICES} | {
        "smart nvme0": "smart",
        "forwarding": "forwarding",
    }
    for name, fact in wanted.items():
        with site.without("spark-1", name) as line:
            error = error_of(site.ask("spark-1", look)[0], fact)
        assert (error["kind"], error["text"]) == ("right", f"sudo does not allow {line}")


def repair(kind: str, **args: object) -> tuple[str, dict[str, Any]]:
    return "repair", {"kind": kind, "args": args, "revert_s": REVERT_S}


def value(site: Site, path: str) -> str:
    return site.yard.run("spark-1", "cat", path).strip()


def test_repairs_work_revert_themselves_and_name_the_right_that_is_missing(site: Site) -> None:
    reverting = [
        (
            repair("mtu", device=device, mtu=1500),
            f"/sys/class/net/{device}/mtu",
            "1500",
            f"mtu {device} 1500",
            f"mtu {device} 9000",
        )
        for device in DEVICES
    ]
    for name, wanted in (("arp_ignore", 1), ("arp_announce", 2)):
        setting = f"net.ipv4.conf.all.{name}"
        order = repair("sysctl", name=setting, value=wanted)
        path = "/proc/sys/" + setting.replace(".", "/")
        reverting.append((order, path, str(wanted), f"sysctl {setting}={wanted}", f"sysctl {setting}=0"))
    setting = "net.ipv4.ip_forward"
    forward = repair("sysctl", name=setting, value=1)
    reverting.append(
        (forward, "/proc/sys/net/ipv4/ip_forward", "1", f"sysctl {setting}=1", f"sysctl {setting}=0")
    )
    for order, path, after, do, undo in reverting:
        before = value(site, path)
        assert before != after, path
        for name in (do, undo):
            with site.without("spark-1", name) as line:
                answer = site.ask("spark-1", order)[0]
            assert answer.failure is not None
            assert line in answer.failure.message
            assert value(site, path) == before
        answer = site.ask("spark-1", order)[0]
        assert answer.failure is None, answer.failure
        deadline = time.monotonic() + REVERT_S + 20.0
        while value(site, path) != before and time.monotonic() < deadline:
            time.sleep(0.2)
        assert value(site, path) == before
    for kind, name, trace in (
        ("drop_caches", "drop caches", "/run/caches-dropped"),
        ("ntp", "ntp", "/run/ntp-switched-on"),
        ("cdi", "cdi", "/etc/cdi/nvidia.yaml"),
    ):
        with site.without("spark-1", name) as line:
            answer = site.ask("spark-1", repair(kind))[0]
        assert answer.failure is not None
        assert f"sudo does not allow {line}" in answer.failure.message
        assert site.ask("spark-1", repair(kind))[0].failure is None
        assert value(site, trace) == "0", "ran as root"


def test_the_checkpoint_is_shared_and_each_missing_right_is_named(site: Site) -> None:
    client = next(name.split()[1] for name in site.rights["spark-1"] if name.startswith("export "))
    for node, name in (("spark-1", "keep exports"), ("spark-1", f"export {client}"), ("spark-2", "mount")):
        with site.without(node, name) as line:
            assert [(where, line in text) for where, text in site.refusals("share")] == [(node, True)], name
    answer = site.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    assert "fuse.nfs" in site.yard.run("spark-2", "cat", "/proc/mounts")
    with site.without("spark-2", "unmount") as line:
        assert [(where, line in text) for where, text in site.refusals("unshare")] == [("spark-2", True)]
    site.yard.run(
        "spark-2", "sh", "-c", "cd /var/lib/sparkyard/nfs && sleep 90 >/dev/null 2>&1 & echo $! >/run/busy"
    )
    with site.without("spark-2", "unmount lazily") as line:
        assert [(where, line in text) for where, text in site.refusals("unshare")] == [("spark-2", True)]
    site.yard.run("spark-2", "sh", "-c", "kill $(cat /run/busy)")
    for name in ("drop exports", f"unexport {client}"):
        with site.without("spark-1", name) as line:
            assert [(where, line in text) for where, text in site.refusals("unshare")] == [
                ("spark-1", True)
            ], name
    answer = site.do("unshare")
    assert answer.exit_code == 0, answer.data["failures"]
    assert "fuse.nfs" not in site.yard.run("spark-2", "cat", "/proc/mounts")
    assert site.yard.run("spark-1", "sh", "-c", "ls /etc/exports.d").strip() == ""


def test_a_share_that_was_not_enrolled_is_refused_with_the_way_on(site: Site) -> None:
    other = yaml.safe_load(site.cluster.read_text())
    other["checkpoint"]["path"] = "/srv/nvme/another"
    site.yard.run("spark-1", "cp", "-a", "/srv/nvme/checkpoint", "/srv/nvme/another")
    place = site.cluster.with_name("other.yaml")
    first_contact.write(other, place, force=True)
    moved = Site(site.yard, place, site.profile, site.rights)
    (node, text), *_ = moved.refusals("share")
    assert node == "spark-1"
    assert "was written for another folder or other clients: ./start.sh enroll" in text


def test_every_right_was_taken_away_once(site: Site) -> None:
    """The tests above go by names; a right that is added needs its own."""
    known = {f"plug {d}" for d in DEVICES} | {f"mtu {d} {size}" for d in DEVICES for size in (9000, 1500)}
    known |= {"smart nvme0", "forwarding", "drop caches", "cdi", "ntp"}
    known |= {f"sysctl net.ipv4.{s}" for s in ("conf.all.arp_ignore=1", "conf.all.arp_ignore=0")}
    known |= {f"sysctl net.ipv4.{s}" for s in ("conf.all.arp_announce=2", "conf.all.arp_announce=0")}
    known |= {"sysctl net.ipv4.ip_forward=1", "sysctl net.ipv4.ip_forward=0"}
    client = next(name.split()[1] for name in site.rights["spark-1"] if name.startswith("export "))
    shared = {"keep exports", "drop exports", f"export {client}", f"unexport {client}"}
    assert set(site.rights["spark-1"]) == known | shared
    assert set(site.rights["spark-2"]) == known | {"mount", "unmount", "unmount lazily"}
