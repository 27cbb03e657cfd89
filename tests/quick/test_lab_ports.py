"""Labs that are set up at one time have no port in common."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil
import yaml

from orchestrator.lab import nodes
from orchestrator.lab.place import Place
from orchestrator.lab.ports import Claim, Claims
from tests.clusters import lab_profile

LABS = 4


def prepared(folder: str) -> set[int]:
    """All ports of a lab that is set up here, in a process of its own."""
    place, profile = Place(Path(folder)), lab_profile()
    nodes.prepare(place, profile, Path(sys.executable))
    found = set()
    for node in yaml.safe_load(place.cluster_file.read_text())["nodes"]:
        found.add(node["port"])
        ports = (profile.ports.api, profile.ports.gate, profile.ports.rendezvous)
        found |= {port + node["port_offset"] for port in ports}
    return found


def test_labs_of_several_processes_share_no_port(tmp_path: Path) -> None:
    folders = [str(tmp_path / str(number)) for number in range(LABS)]
    with ProcessPoolExecutor(LABS, mp_context=get_context("fork")) as pool:
        found = list(pool.map(prepared, folders))
    assert len(set().union(*found)) == sum(len(ports) for ports in found) == LABS * 12


def test_a_lab_that_is_set_up_again_keeps_its_ports_and_gives_them_back(tmp_path: Path) -> None:
    first = prepared(str(tmp_path / "one"))
    assert prepared(str(tmp_path / "one")) == first
    assert not prepared(str(tmp_path / "two")) & first
    for name in ("one", "two"):
        nodes.give_ports_back(Place(tmp_path / name))


def test_the_claim_of_a_dead_process_holds_nothing_unless_its_lab_runs(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    Claims(path, tmp_path / "a", lambda _: True).keep((1, 2))
    assert Claims(path, tmp_path / "b", lambda _: True).taken == {1, 2}
    assert Claims(path, tmp_path / "b", lambda _: False).taken == frozenset()
    seen: list[Claim] = []
    Claims(path, tmp_path / "b", lambda claim: bool(seen.append(claim)))
    assert seen[0].pid == psutil.Process().pid
    path.write_text("[{]")
    assert Claims(path, tmp_path / "b", lambda _: True).taken == frozenset()
