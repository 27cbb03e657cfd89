"""The watch's own key in authorized_keys: restricted, once, and nobody else's line is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent import authorize
from node_agent.wire import Refused
from orchestrator.model.cluster import Cluster
from orchestrator.watch import key
from tests.clusters import lab_cluster

ONE = "ssh-ed25519 " + "A" * 68
TWO = "ssh-ed25519 " + "B" * 68


def test_a_new_key_takes_the_place_of_its_predecessor(tmp_path: Path) -> None:
    path = tmp_path / ".ssh" / "authorized_keys"
    assert authorize.add({"key": ONE, "deployment": "flash"}, tmp_path)["changed"]
    assert not authorize.add({"key": ONE, "deployment": "flash"}, tmp_path)["changed"]
    path.write_text(f"# mine\n{ONE} me\n{path.read_text()}restrict {ONE} sparkyard-monitor-other\n")
    authorize.add({"key": TWO, "deployment": "flash"}, tmp_path)
    lines = path.read_text().splitlines()
    assert lines[:2] == ["# mine", f"{ONE} me"]
    assert lines[2:] == [f"restrict {ONE} sparkyard-monitor-other", f"restrict {TWO} sparkyard-monitor-flash"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('command="x" ' + ONE, "flash"),
        (ONE + "\nssh-rsa AAAA", "flash"),
        (ONE + " comment", "flash"),
        ("ssh-rsa " + "A" * 68, "flash"),
        (ONE, "a b"),
        (ONE, "x\ny"),
        ("", "flash"),
    ],
)
def test_no_other_line_can_be_written(tmp_path: Path, text: str, name: str) -> None:
    with pytest.raises(Refused, match="authorize"):
        authorize.add({"key": text, "deployment": name}, tmp_path)
    assert not (tmp_path / ".ssh").exists()


def test_only_nodes_that_are_reached_by_ssh_get_the_key() -> None:
    lab = lab_cluster()
    assert not key.needed(lab)
    data = lab.model_dump(by_alias=True) | {"topology": "switch"}
    data["nodes"][0]["transport"] = "local"
    fleet = Cluster.model_validate(data)
    assert key.needed(fleet)
    assert [node.key for node in key.with_key(fleet, Path("/k")).nodes] == [None, "/k", "/k"]
