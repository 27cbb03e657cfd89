"""Files of every released version: understood as they are. Files of another version: refused, with the way on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from node_agent.actions.containers import parse_labels
from orchestrator.bench import store as records
from orchestrator.capture import load as load_capture
from orchestrator.errors import ConfigError
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.facts import NodeFacts
from orchestrator.watch import replay
from sparkyard_engine import rankspec
from sparkyard_engine.engram import manifest
from sparkyard_engine.engram.errors import Reject, StoreError
from sparkyard_engine.engram.format import digest_of
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.slices import manifest as slices
from tests.hostile_agent import program
from tests.quick.test_refusals import agent, ask, hear

RELEASED = Path(__file__).resolve().parents[1] / "cases" / "released"
VERSIONS = sorted(path.name for path in RELEASED.iterdir())
LATER = "sparkyard/{}/v2"


@pytest.fixture(params=VERSIONS)
def files(request: pytest.FixtureRequest) -> Path:
    return RELEASED / str(request.param)


def changed(path: Path, target: Path, **changes: object) -> Path:
    """A copy of a JSON file with other values."""
    target.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return target


def test_configuration(files: Path, tmp_path: Path) -> None:
    assert len(load_cluster(files / "cluster.yaml").nodes) == 3
    assert load_profile(str(files / "profile.yaml")).name == "lab"
    for name, kind, load in (
        ("cluster", "cluster", load_cluster),
        ("profile", "profile", lambda p: load_profile(str(p))),
    ):
        text = (files / f"{name}.yaml").read_text()
        later = tmp_path / f"{name}.yaml"
        later.write_text(text.replace(f"sparkyard/{kind}/v1", LATER.format(kind)))
        with pytest.raises(ConfigError, match="is another version, this sparkyard reads") as caught:
            load(later)
        assert "use the sparkyard that wrote it" in str(caught.value)


def test_a_packed_store(files: Path, tmp_path: Path) -> None:
    store = files / "engram-store"
    entry = manifest.load(store).layers[0]
    with Reader(store, entry.header.layer) as opened:
        ids = np.concatenate([np.arange(a, b) for a, b in opened.slice.ranges])
        opened.read_rows(ids, np.empty((len(ids), 256), np.uint8), np.empty((len(ids), 8), np.uint8))
    value = json.loads((store / "manifest.json").read_text())
    del value["digest"]
    value["format"] = 2
    later = tmp_path / "later"
    shutil.copytree(store, later)
    (later / "manifest.json").write_text(json.dumps({**value, "digest": digest_of(value)}))
    with pytest.raises(StoreError) as caught:
        manifest.load(later)
    assert caught.value.reason is Reject.OTHER_VERSION
    assert "use the sparkyard that packed it" in str(caught.value)
    header = bytearray((store / entry.file).read_bytes())
    header[8] += 1  # the version follows the magic of eight bytes
    (later / "manifest.json").write_bytes((store / "manifest.json").read_bytes())
    (later / entry.file).write_bytes(header)
    with pytest.raises(StoreError), Reader(later, entry.header.layer) as opened:
        opened.read_rows(ids, np.empty((len(ids), 256), np.uint8), np.empty((len(ids), 8), np.uint8))


def test_a_slice_store(files: Path, tmp_path: Path) -> None:
    store = files / "slice-store"
    told = json.loads((store / "manifest.json").read_text())["identity"]
    wanted = slices.Identity(
        told["revision"], told["index_sha256"], told["tp"], told["rank"], told["padding"]
    )
    assert slices.load(store, wanted).bytes == 24
    shutil.copytree(store, tmp_path / "later")
    changed(store / "manifest.json", tmp_path / "later" / "manifest.json", schema=LATER.format("slice-store"))
    with pytest.raises(slices.SliceError, match=r"slice-store/v1.*slice-store/v2"):
        slices.load(tmp_path / "later", wanted)


def test_records_on_a_node(files: Path, tmp_path: Path) -> None:
    shutil.copytree(files / "node", tmp_path / "root")
    later = {"deployment": "d", "generation": 0, "state": "serving", "profile": "p"}
    facts, older, newer = ask(
        agent(tmp_path), ("facts", {}), ("SetDesired", later), ("SetDesired", {**later, "generation": 2})
    )
    found, expected = (
        NodeFacts.model_validate(facts.value),
        NodeFacts.model_validate_json((files / "facts.json").read_bytes()),
    )
    for name in ("boots", "proof"):
        assert getattr(found, name) == getattr(expected, name)
    assert [(job.id, job.spec, job.state) for job in found.jobs] == [
        (job.id, job.spec, job.state) for job in expected.jobs
    ]
    assert [(rank.deployment, rank.generation, rank.spec) for rank in found.ranks] == [
        (rank.deployment, rank.generation, rank.spec) for rank in expected.ranks
    ]
    assert found.desired is not None
    assert found.desired.generation == 1
    assert older.failure is not None
    assert "another controller was here" in older.failure.message
    assert newer.failure is None
    assert json.loads((tmp_path / "root" / "layout.json").read_text()) == {
        "schema": "sparkyard/node-layout/v1",
        "layout": 1,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": "sparkyard/node-layout/v1", "layout": 2}', "has layout 2, this sparkyard knows 1"),
        ("{", "is damaged"),
    ],
)
def test_a_folder_of_a_later_layout_is_left_alone(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "layout.json").write_text(text)
    failure = hear(agent(tmp_path)).failure
    assert failure is not None
    assert words in failure.message
    assert {path.name for path in (tmp_path / "root").iterdir()} == {"layout.json", "agent"}


def test_an_agent_of_another_version_is_not_talked_to(tmp_path: Path) -> None:
    failure = hear(agent(tmp_path, program(tmp_path, "other"))).failure
    assert failure is not None
    assert "the agent does not start" in failure.message


def test_events_bundles_records_specs_and_labels(files: Path, tmp_path: Path) -> None:
    lines, skipped = replay.read(files / "events.jsonl")
    assert len(lines) > 20
    assert skipped == 0
    text = (files / "events.jsonl").read_text()
    unknown = json.dumps({"schema": "sparkyard/event/v1", "unix_s": 1, "event": "FromTheFuture", "x": 1})
    (tmp_path / "events.jsonl").write_text(f"{text}{unknown}\n")
    assert replay.read(tmp_path / "events.jsonl") == (lines, 1)
    load_capture(files / "capture.json", now_unix_s=1.0)
    with pytest.raises(ConfigError, match=r"capture/v1"):
        load_capture(
            changed(files / "capture.json", tmp_path / "c.json", schema=LATER.format("capture")),
            now_unix_s=1.0,
        )
    assert records.read(str(files / "bench-record.json"), tmp_path)[0].name == "released"
    path = changed(files / "bench-record.json", tmp_path / "b.json", schema=LATER.format("bench"))
    with pytest.raises(ConfigError, match=r"bench/v1"):
        records.read(str(path), tmp_path)
    assert rankspec.load(files / "rank-spec.json").deployment == "d"
    with pytest.raises(rankspec.RankSpecError, match=r"rank-spec/v1.*rank-spec/v2"):
        rankspec.load(
            changed(files / "rank-spec.json", tmp_path / "s.json", schema=LATER.format("rank-spec"))
        )
    labels = parse_labels((files / "labels.txt").read_text().strip())
    assert labels["sparkyard.generation"] == "7"
