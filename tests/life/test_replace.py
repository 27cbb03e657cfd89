"""Replacing a deployment: preflight first, evidence before the end of a start that fails, the last good one back."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import last_good
from orchestrator.errors import ConfigError
from orchestrator.lab import nodes
from orchestrator.last_good import NothingGoodError
from orchestrator.model import event as events
from orchestrator.model.profile import Profile
from orchestrator.verbs import Answer, converging, planned, status
from orchestrator.watch import install
from tests.standin_engine.lab import StandinLab

APPS = "nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv,noheader"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinLab]:
    with StandinLab(tmp_path_factory.mktemp("lab")) as running:
        yield running


def seen(lab: StandinLab) -> dict[str, Any]:
    return asyncio.run(status(lab.session())).data


def texts(answer: Answer) -> list[str]:
    return [f"{failure['node']}: {failure['message']}" for failure in answer.data["failures"]]


def test_nothing_good_is_said(lab: StandinLab) -> None:
    with pytest.raises(NothingGoodError, match="nothing to bring back"):
        asyncio.run(last_good.serve(lab.session(), any_deployment=False))


def probed(lab: StandinLab, age_s: float) -> None:
    """A load probe of some time ago found blocks of the head's disk that differ from read to read."""
    result = {
        "unix_s": time.time() - age_s,
        "path": "/",
        "qd1_iops": 9e3,
        "qd1_p99_us": 90.0,
        "qd64_iops": 5e5,
    }
    text = json.dumps({"nvme": result | {"mismatches": 3}})
    (lab.place.node("spark-1") / "probes.json").write_text(text)


def test_strangers_on_the_gpu_and_fresh_load_probes_forbid_a_start(lab: StandinLab) -> None:
    """The recorded machine of one node shows a program that holds 20 GiB; a load probe of the head's disk failed."""
    folder = lab.place.folder / "recorded"
    document = yaml.safe_load(lab.place.cluster_file.read_text())
    shutil.copytree(document["nodes"][1]["recorded"], folder)
    recorded = json.loads((folder / "node.json").read_text())
    recorded["commands"][APPS] = "4711, /usr/bin/trainer, 20480 MiB\n"
    (folder / "node.json").write_text(json.dumps(recorded))
    before = lab.place.cluster_file.read_text()
    document["nodes"][1]["recorded"] = str(folder)
    lab.place.cluster_file.write_text(yaml.safe_dump(document))
    probed(lab, 3600.0)
    answer = lab.do("up")
    assert answer.exit_code == 1
    disk, text = texts(answer)
    assert disk.startswith("spark-1: disk.integrity")
    assert text.startswith("spark-2: gpu.foreign")
    assert "/usr/bin/trainer (pid 4711" in text
    assert "20.0 GiB" in text
    assert "--ignore gpu.foreign" in answer.data["failures"][1]["remedy"]
    assert any(
        "uses the load probes of spark-1" in event.text
        for event in lab.events
        if isinstance(event, events.Said)
    )
    assert not any(here.ranks for here in lab.facts().values()), "no rank was started"
    probed(lab, 25 * 3600.0)
    ignoring = replace(lab.session(), ignore=("gpu.foreign",))
    assert asyncio.run(converging(ignoring, "serve")).exit_code == 0
    lab.place.cluster_file.write_text(before)


def test_what_serves_goes_on_when_the_preflight_of_the_new_fails(lab: StandinLab) -> None:
    """One node's copy of the plug-in differs by a line."""
    assert lab.do("up").exit_code == 0
    before = seen(lab)
    plan = asyncio.run(planned(lab.session(), "restart"))
    assert plan.data["blocked"] == [], "the old gang's ports are its own"
    package = lab.session().goal()[0].package.digest
    source = lab.place.node("spark-3") / "engine" / package / "sparkyard_engine" / "plugin.py"
    text = source.read_text()
    source.write_text(text + "# another\n")
    answer = lab.do("restart")
    assert (answer.exit_code, answer.data["stages"]) == (1, [])
    (found,) = texts(answer)
    assert found.startswith("spark-3: rank 2: the plug-in's package is ")
    after = seen(lab)
    assert after["serving"]
    assert after["generation"] == before["generation"]
    assert [rank["since_unix_s"] for rank in after["ranks"]] == [
        rank["since_unix_s"] for rank in before["ranks"]
    ]
    source.write_text(text)


def test_evidence_first_and_the_last_good_is_back_with_one_verb(lab: StandinLab, tmp_path: Path) -> None:
    good, generation = lab.profile, seen(lab)["generation"]
    data = good.model_dump(mode="json", by_alias=True)
    data["model"]["served_name"] = "another"
    lab.profile = Profile.model_validate(data)
    lab.fault("die-loading", 1)
    lab.events.clear()
    answer = asyncio.run(converging(replace(lab.session(), evidence=tmp_path), "serve"))
    lab.fault("", 1)
    assert answer.exit_code == 1
    said = [event.text for event in lab.events if isinstance(event, events.Said)]
    kept = next(place for place, text in enumerate(said) if text.startswith("evidence of every rank"))
    ended = next(place for place, text in enumerate(said) if "ending the ranks" in text)
    assert kept < ended
    assert any("--last-good" in text for text in said)
    (folder,) = tmp_path.iterdir()
    for rank in range(3):
        assert json.loads((folder / f"rank-{rank}" / "status.json").read_text())["rank"] == rank
    assert not any(found.alive for here in lab.facts().values() for found in here.ranks)

    plan = asyncio.run(last_good.serve(lab.session(), any_deployment=False, dry_run=True))
    assert f"generation {generation + 2}" in plan.data["stages"][0]["title"]
    back = asyncio.run(last_good.serve(lab.session(), any_deployment=True))
    assert back.exit_code == 0, back.data["failures"]
    desired = {here.desired.profile for here in lab.facts().values()}
    assert desired == {good.identity}
    lab.profile = good
    now = seen(lab)
    assert (now["serving"], now["generation"], now["model"]) == (True, generation + 2, good.model.served_name)


def test_the_command_line_brings_it_back_too(lab: StandinLab) -> None:
    code, data = lab.call("serve", "--last-good")
    assert (code, data["stages"]) == (0, []), "it serves already"
    code, data = lab.call("serve", "--ignore", "nonsense")
    assert code == 2


def test_a_monitor_is_not_installed_on_a_machine_that_is_no_node(lab: StandinLab, tmp_path: Path) -> None:
    """The nodes tell their machine's id; this file says that another one asks."""
    other = tmp_path / "machine-id"
    other.write_text("0" * 32 + "\n")
    session = lab.session()
    unit = install.unit(session, lab.place.cluster_file, "lab", ())
    with pytest.raises(ConfigError, match="no node of the cluster"):
        asyncio.run(install.install(session, unit, other))


def test_stop_says_which_node_it_could_not_reach(lab: StandinLab) -> None:
    """What can be reached is stopped; the verb fails until somebody has looked at the rest."""
    assert lab.do("up").exit_code == 0
    server = json.loads((lab.place.server("spark-3") / "pid.json").read_text())
    os.kill(server["pid"], signal.SIGKILL)
    answer = lab.do("stop")
    assert answer.exit_code == 1
    (failure,) = answer.data["failures"]
    assert (failure["node"], failure["kind"]) == ("spark-3", "unreachable")
    assert "whether its rank is gone is unknown" in failure["message"]
    nodes.up(lab.place)
    facts = lab.facts()
    assert {facts[name].desired.state for name in ("spark-1", "spark-2")} == {"stopped"}
    assert lab.do("stop").exit_code == 0
    assert {here.desired.state for here in lab.facts().values()} == {"stopped"}
    assert not any(found.alive for here in lab.facts().values() for found in here.ranks)
