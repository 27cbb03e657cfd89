"""A gang across two machines with memories of their own, the monitor as a unit of systemd, and a power cut of both.

The engine is a stand-in; agents, guards, monitor, systemd, NFS and kernels are real. Follows `test_share.py`.
"""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import yaml

from tests.vms import product
from tests.vms.machines import BOUND_S, MOUNT, NAMES, Machines

pytestmark = [
    pytest.mark.unproven,
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11),
        reason="the machines have Debian's Python 3.11, these packages are for another one",
    ),
]

FLEET = "/root/fleet"
UNIT = "sparkyard-monitor-lab.service"
JOURNAL = f"journalctl --no-pager -o cat -u {UNIT}"
METRICS = "exec 3<>/dev/tcp/127.0.0.1/9477 && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
HOG = """
import time
floor, held = {floor}, []
def available():
    lines = open("/proc/meminfo").read().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
while available() >= floor:
    held.append(b"1" * (8 << 20))
time.sleep(3)
"""
"""Takes memory until the guard's floor is passed, and gives it back: the guards look four times a second."""
PACE = "--every 10 --look-every 10"
"""An emulated processor would do nothing else at the usual pace."""


def serves(machines: Machines) -> int:
    """Generation that answers a request at the endpoint."""
    done = {name: here.desired for name, here in machines.facts().items()}
    body = json.dumps({"model": "lab-v41", "prompt": "a b", "max_tokens": 2})
    ask = (
        "import sys, urllib.request as u; print(u.urlopen(u.Request('http://127.0.0.1:30000/v1/completions', "
    )
    ask += "sys.argv[1].encode(), {'Content-Type': 'application/json'}), timeout=60).read().decode())"
    said = machines.vms.run(1, f"python3 -c \"{ask}\" '{body}'")
    assert json.loads(said)["choices"][0]["text"]
    assert {desired.state for desired in done.values() if desired} == {"serving"}
    return next(desired.generation for desired in done.values() if desired)


def test_a_gang_serves_across_both(machines: Machines) -> None:
    answer = machines.do("up")
    assert answer.exit_code == 0, answer.data["failures"]
    assert serves(machines) == 1


def test_the_monitor_is_a_unit_that_systemd_has_nothing_to_say_about(machines: Machines) -> None:
    folder = machines.vms.folder
    (folder / "fleet").mkdir()
    body = yaml.safe_load(machines.vms.cluster.read_text())
    for node in body["nodes"]:
        node["key"] = f"{FLEET}/key"
    (folder / "fleet/cluster.yaml").write_text(yaml.safe_dump(body))
    profile = machines.profile().model_dump(mode="json", by_alias=True)
    (folder / "fleet/profile.yaml").write_text(yaml.safe_dump(profile))
    shutil.copy(folder / "id_ed25519", folder / "fleet/key")
    machines.vms.put(1, shutil.make_archive(f"{folder}/fleet", "tar", folder / "fleet"), "/root/fleet.tar")
    words = f"monitor --install {PACE} --profile {FLEET}/profile.yaml --cluster {FLEET}/cluster.yaml"
    said = machines.vms.run(
        1,
        f"umask 077; mkdir {FLEET} && tar -xf /root/fleet.tar -C {FLEET} && chmod 600 {FLEET}/* && "
        f"cd {product.PLACE} && {product.PYTHON} -m orchestrator {words} 2>&1",
        timeout_s=BOUND_S,
    )
    assert f"{UNIT}: enabled and started" in said
    verified = machines.vms.run(1, f"systemd-analyze verify --man=no /etc/systemd/system/{UNIT} 2>&1")
    assert verified == ""
    for name in NAMES:
        machines.until(1, METRICS, f'sparkyard_node_up{{node="{name}"}} 1.0', BOUND_S)
    assert machines.vms.run(1, f"systemctl show --property NRestarts --value {UNIT}").strip() == "0"


def test_a_memory_hog_is_named_with_its_node_and_the_gang_restarted(machines: Machines) -> None:
    found = machines.vms.run(2, "cat /srv/sparkyard/*/lab.g1.r1/rank.json")
    floor = json.loads(found)["memory_floor_bytes"]
    machines.vms.run(2, f"python3 -c '{HOG.format(floor=floor)}'")
    said = machines.until(1, JOURNAL, "it serves again", BOUND_S)
    assert "restart: dead rank: memory floor on spark-2: spark-2: rank 1 ended: memory_floor" in said
    assert serves(machines) == 2


def test_after_a_power_cut_share_monitor_and_gang_are_back_by_themselves(machines: Machines) -> None:
    machines.vms.reboot(1, 2)
    machines.until(2, "cat /proc/mounts", MOUNT, BOUND_S)
    machines.until(1, JOURNAL, "it serves again", 2 * BOUND_S)
    assert machines.vms.run(1, f"systemctl is-active {UNIT}").strip() == "active"
    assert serves(machines) == 3
    assert machines.do("share").data["stages"] == []


def test_stop_stays_stopped_and_unshare_takes_it_back_from_both(machines: Machines) -> None:
    answer = machines.do("stop")
    assert answer.exit_code == 0, answer.data["failures"]
    machines.vms.run(1, f"systemctl disable --now {UNIT}")
    answer = machines.do("unshare")
    assert answer.exit_code == 0, answer.data["failures"]
    assert MOUNT not in machines.vms.run(2, "cat /proc/mounts /etc/fstab")
    assert "models--" not in machines.vms.run(1, "exportfs -s; ls /etc/exports.d; cat /var/lib/nfs/etab")
