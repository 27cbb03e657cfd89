"""The monitor as a unit of systemd, and a reboot of both machines.

Under emulation the monitor takes minutes to load: there it runs only when asked for, with
SPARKYARD_EMULATE=1.
"""

from __future__ import annotations

import shutil
import sys

import pytest
import yaml

from tests.vms import product
from tests.vms.machines import BOUND_S, NAMES, UNIT, Machines, needs_patience

pytestmark = [
    pytest.mark.skipif(
        sys.version_info[:2] != (3, 11),
        reason="the machines have Debian's Python 3.11, these packages are for another one",
    ),
    needs_patience,
]

FLEET = "/root/fleet"
METRICS = "exec 3<>/dev/tcp/127.0.0.1/9477 && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
PACE = "--every 10 --look-every 10"
"""An emulated processor would do nothing else at the usual pace."""


def watched(machines: Machines) -> None:
    """Wait until the monitor sees both machines; systemd did not have to start it again."""
    for name in NAMES:
        machines.until(1, METRICS, f'sparkyard_node_up{{node="{name}"}} 1.0', BOUND_S)
    shown = machines.vms.run(1, f"systemctl show --property ActiveState,NRestarts --value {UNIT}")
    assert shown.split() == ["0", "active"] or shown.split() == ["active", "0"]


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
    watched(machines)


def test_after_a_reboot_of_both_the_monitor_is_back_by_itself(machines: Machines) -> None:
    machines.vms.reboot(1, 2)
    watched(machines)
