"""A gang across two machines with memories of their own, under the monitor's unit that `test_unit.py` installs.

The engine is a stand-in; agents, guards, monitor, systemd, NFS and kernels are real.
"""

from __future__ import annotations

import json

from tests.vms.machines import BOUND_S, UNIT, Machines, needs_patience

pytestmark = needs_patience

JOURNAL = f"journalctl --no-pager -o cat -u {UNIT}"
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
ASK = """
import sys, urllib.request as web
headers = {"Content-Type": "application/json"}
asked = web.Request("http://127.0.0.1:30000/v1/completions", sys.argv[1].encode(), headers)
print(web.urlopen(asked, timeout=60).read().decode())
"""


def serves(machines: Machines) -> int:
    """Generation that answers a request at the endpoint."""
    desired = next(here.desired for here in machines.facts().values() if here.desired)
    body = json.dumps({"model": "lab-v41", "prompt": "a b", "max_tokens": 2})
    said = machines.vms.run(1, f"python3 -c '{ASK}' '{body}'")
    assert json.loads(said)["choices"][0]["text"]
    assert desired.state == "serving"
    return desired.generation


def test_a_gang_serves_across_both(machines: Machines) -> None:
    answer = machines.do("up")
    assert answer.exit_code == 0, answer.data["failures"]
    assert serves(machines) == 1


def test_a_memory_hog_is_named_with_its_node_and_the_gang_restarted(machines: Machines) -> None:
    spec = machines.vms.run(2, "cat /srv/sparkyard/ranks/lab.g1.r1/rank.json")
    machines.vms.run(2, f"python3 -c '{HOG.format(floor=json.loads(spec)['memory_floor_bytes'])}'")
    said = machines.until(1, JOURNAL, "it serves again", 2 * BOUND_S)
    assert "restart: dead rank: memory floor on spark-2: spark-2: rank 1 ended: memory_floor" in said
    assert serves(machines) == 2


def test_stop_stays_stopped(machines: Machines) -> None:
    answer = machines.do("stop")
    assert answer.exit_code == 0, answer.data["failures"]
    machines.until(1, JOURNAL, "gang: stopped", BOUND_S)
    assert machines.do("unshare").exit_code == 0
