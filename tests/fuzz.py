"""Every reader of something that comes from elsewhere, with a good sample and the errors that it may raise.

`damaged` makes bad inputs of the good one: bytes cut, repeated, changed; values of JSON and YAML replaced by others of
every kind; deep nesting; long words. A reader understands an input, or raises one of its named errors with words, in
`SECONDS_MAX`. Anything else is a find.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from node_agent import checkpoint, files, jobs, look, tree
from node_agent.home import Home
from node_agent.image import archive
from node_agent.watch import page, ranks
from node_agent.wire import read_line
from orchestrator import capture, envfile
from orchestrator.bench import store
from orchestrator.errors import AskError, ConfigError
from orchestrator.explain import judge
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.facts import JobFacts, NodeFacts, RankFacts, StoreFacts
from orchestrator.model.sample import happened_from_json
from orchestrator.remote.lines import parsed
from orchestrator.shards import read_checkpoint
from orchestrator.watch import replay
from sparkyard_engine import rankspec
from sparkyard_engine.engram import manifest, reader, source
from sparkyard_engine.engram.errors import EngramError
from sparkyard_engine.slices import pack as slices

ROOT = Path(__file__).resolve().parents[1]
SECONDS_MAX = 5.0
"""For one input of at most a megabyte, on a busy machine; none takes a hundredth of it."""
GROWN_MAX = 1 << 20

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=True),
    st.text(max_size=20),
    st.sampled_from(
        ["", "../../etc/passwd", "\x1b[2J", "\ud800", "9" * 5000, "x" * 9000, "0x1", "1e999", "~", "\x00"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
NOISE = (
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"{",
    b"}",
    b"[" * 3000,
    b'"',
    b"\\",
    b"-",
    b"9" * 400,
    b"\x1b]0;x\x07",
    b"{a: " * 500,
)


@dataclass(frozen=True)
class Target:
    """`read` gets a folder of its own and the bytes; `errors` are those that it may raise."""

    good: Callable[[], bytes]
    read: Callable[[Path, bytes], Any]
    errors: tuple[type[Exception], ...]
    structure: str = ""
    """`json` or `yaml`: values are replaced too."""


@st.composite
def damaged(draw: st.DrawFn, target: Target) -> bytes:
    """A good input with one to three kinds of damage."""
    made = target.good()
    if target.structure and draw(st.booleans()):
        made = draw(replaced(made, target.structure))
    for _ in range(draw(st.integers(0 if target.structure else 1, 3))):
        at = draw(st.integers(0, max(0, len(made) - 1)))
        match draw(st.sampled_from(["cut", "change", "insert", "repeat", "noise"])):
            case "cut":
                made = made[:at]
            case "change":
                made = made[:at] + bytes([draw(st.integers(0, 255))]) + made[at + 1 :]
            case "insert":
                made = made[:at] + draw(st.sampled_from(NOISE)) + made[at:]
            case "repeat":
                made = (made[:at] + made * draw(st.integers(1, 8)))[:GROWN_MAX]
            case "noise":
                made = draw(st.binary(max_size=60)) + made[at:]
    return made


@st.composite
def replaced(draw: st.DrawFn, good: bytes, structure: str) -> bytes:
    """One value, somewhere in the document, replaced, taken away or given a new neighbour."""
    value = json.loads(good) if structure == "json" else yaml.safe_load(good)
    value = copy.deepcopy(value)
    here: Any = value
    for _ in range(draw(st.integers(0, 5))):
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        inner = [key for key in keys if isinstance(here[key], dict | list) and here[key]]
        if not inner:
            break
        here = here[draw(st.sampled_from(inner))]
    keys = list(here) if isinstance(here, dict) else list(range(len(here)))
    if keys:
        key = draw(st.sampled_from(keys))
        if draw(st.integers(0, 4)):
            here[key] = draw(VALUES)
        else:
            del here[key]
    if isinstance(here, dict) and not draw(st.integers(0, 3)):
        here[draw(st.text(max_size=9))] = draw(VALUES)
    if structure == "json":
        return json.dumps(value).encode("utf-8", "surrogatepass")
    return yaml.safe_dump(value, allow_unicode=False).encode("utf-8", "surrogatepass")


def fuzz(name: str, folder: Path, examples: int) -> int:
    """Try a reader; how many inputs it met. AssertionError with the input when it broke."""
    target, met = TARGETS[name], 0
    target.read(folder, target.good())  # the good input is understood

    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(damaged(target))
    def run(bad: bytes) -> None:
        nonlocal met
        met += 1
        begin = time.monotonic()
        with contextlib.suppress(*target.errors):
            target.read(folder, bad)
        assert time.monotonic() - begin < SECONDS_MAX, f"{name}: took {time.monotonic() - begin:.1f} s"

    run()
    return met


# readers ----------------------------------------------------------------------------------------------------------


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def facts_of_node(data: bytes) -> None:
    NodeFacts.model_validate(parsed(data))


def home(folder: Path) -> Home:
    return Home(folder / "home", "spark-1", "a" * 64)


def rank_status(folder: Path, data: bytes) -> None:
    """All that reads a rank's folder, with the status damaged."""
    here = home(folder)
    place = here.rank_folder("d", 1, 0)
    body = {"deployment": "d", "generation": 1, "rank": 0, "memory_floor_bytes": 1}
    written(
        place, "spec.json", json.dumps({"body": body, "identity": "5" * 64, "argv": [], "env": {}}).encode()
    )
    written(place, "rank.json", json.dumps(body).encode())
    written(place, "status.json", data)
    for found in look.ranks(here):
        RankFacts.model_validate(found)
    json.dumps(ranks.read(here))


def rank_folder_spec(folder: Path, data: bytes) -> None:
    """All that reads a rank's folder, with its own record damaged."""
    written(home(folder).rank_folder("d", 1, 0), "spec.json", data)
    for found in look.ranks(home(folder)):
        RankFacts.model_validate(found)


def job_files(folder: Path, data: bytes) -> None:
    here = home(folder)
    for name in ("status.json", "exit.json", "pid.json"):
        written(
            here.jobs / "pack-1",
            "spec.json",
            b'{"id": "pack-1", "kind": "pack", "identity": "' + b"5" * 64 + b'"}',
        )
        written(here.jobs / "pack-1", name, data)
        for found in jobs.facts(here):
            JobFacts.model_validate(found)


def job_record(folder: Path, data: bytes) -> None:
    written(home(folder).jobs / "pack-1", "spec.json", data)
    for found in jobs.facts(home(folder)):
        JobFacts.model_validate(found)


def stores_of_node(folder: Path, data: bytes) -> None:
    written(home(folder).packs / ("5" * 64), "manifest.json", data)
    written(home(folder).slices / ("6" * 64), "manifest.json", data)
    for found in (*look.stores(home(folder)), *look.slice_stores(home(folder))):
        StoreFacts.model_validate(found)


def shard(folder: Path, data: bytes) -> None:
    """One shard through every reader of its header."""
    written(folder, "model.safetensors.index.json", b'{"weight_map": {"norm.weight": "model.safetensors"}}')
    path = written(folder, "model.safetensors", data)
    checkpoint.facts(folder)
    for read, errors in (
        (lambda: read_checkpoint(folder), (ConfigError,)),
        (lambda: source._shard_header(path), (EngramError,)),
        (lambda: slices.main(slice_words(folder)), ()),
    ):
        with contextlib.suppress(*errors):
            read()


def slice_words(folder: Path) -> list[str]:
    written(folder, "config.json", b'{"num_attention_heads": 6, "o_groups": 3}')
    words = ["--checkpoint", str(folder), "--revision", "r", "--tp", "3", "--rank", "0"]
    return [*words, "--output", str(folder / "out" / "store")]


def index(folder: Path, data: bytes) -> None:
    written(folder, "model.safetensors", b"")
    written(folder, "model.safetensors.index.json", data)
    checkpoint.facts(folder)
    tree.faults(folder)
    slices.main(slice_words(folder))
    with contextlib.suppress(ConfigError):
        read_checkpoint(folder)


@cache
def good_shard() -> bytes:
    header = json.dumps({"norm.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * 8


@cache
def good_store() -> Path:
    import tempfile

    from tests.engram_stores import make_store

    folder = tempfile.mkdtemp(prefix="sparkyard-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_store(Path(folder))[1]


def good_layer() -> bytes:
    return (good_store() / "layer-1.rows").read_bytes()


def good_manifest() -> bytes:
    return (good_store() / "manifest.json").read_bytes()


def packed_file(folder: Path, data: bytes) -> None:
    """A damaged file of rows: every page is read, and what is given is right or refused."""
    import numpy as np

    if not (folder / "store").exists():
        shutil.copytree(good_store(), folder / "store")
    (folder / "store" / "layer-1.rows").write_bytes(data)
    with reader.Reader(folder / "store", 1) as opened:
        ids = np.concatenate([np.arange(a, b) for a, b in opened.slice.ranges])
        opened.read_rows(ids, np.empty((len(ids), 256), np.uint8), np.empty((len(ids), 8), np.uint8))


def image_archive(_: Path, data: bytes) -> None:
    import io

    archive.read(io.BytesIO(data), lambda chunks, _, digest: digest or f"sha256:{sum(map(len, chunks)):064x}")


@cache
def good_image() -> bytes:
    import hashlib
    import io
    import tarfile

    config = json.dumps(
        {"architecture": "arm64", "os": "linux", "rootfs": {"diff_ids": ["sha256:0"]}}
    ).encode()
    layer = b"layer" * 100
    manifest_ = json.dumps([{"Config": "config.json", "Layers": ["layer.tar"]}]).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in (("config.json", config), ("layer.tar", layer), ("manifest.json", manifest_)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    assert hashlib.sha256(config)
    return buffer.getvalue()


def good_facts() -> bytes:
    from tests.clusters import lab_cluster, lab_profile
    from tests.sim import fresh, make_goal

    return fresh("spark-1", make_goal(lab_profile(), lab_cluster())).model_dump_json().encode()


def good_capture() -> bytes:
    return json.dumps(
        {
            "schema": "sparkyard/capture/v1",
            "taken_unix_s": 1.0,
            "topology": "triangle",
            "nodes": {"a": {"hardware": {"schema": "sparkyard/hardware/v1", "took_s": 1.0, "facts": {}}}},
        }
    ).encode()


def good_event() -> bytes:
    failure = {"node": "a", "kind": "failed", "message": "m", "remedy": "", "evidence": ["x"]}
    return json.dumps(
        {"schema": "sparkyard/event/v1", "unix_s": 1.0, "event": "StepFailed", "node": "a", "what": "w", "seconds": 1.0,
         "failure": failure}
    ).encode()  # fmt: skip


def good_spec() -> bytes:
    return json.dumps(
        {
            "schema": "sparkyard/rank-spec/v1", "deployment": "d", "generation": 1, "rank": 0, "tp": 1,
            "argv": ["/bin/true"], "env": {}, "directory": "/tmp", "memory_floor_bytes": 1, "grace_s": 1.0,
            "api_port": 1, "gate_port": 2, "metrics_port": None, "plugin": {"engram": {}},
        }
    ).encode()  # fmt: skip


def good_status() -> bytes:
    return json.dumps(
        {
            "schema": "sparkyard/rank-status/v1", "deployment": "d", "generation": 1, "rank": 0, "phase": "ready",
            "phases": {"ready": 1.0}, "guard_pid": 1, "ended": {"reason": "hang", "detail": "x", "log_tail": []},
            "proof": {"engram": {"store_id": "5"}, "weights": {"from": "slices", "note": ""}},
            "engram": {"rows_requested": 1, "layers": {"1": {"batches": 1, "latency": [1]}}}, "padded": 1,
            "memory_low_water_bytes": 1, "last_log_unix_s": 1.0, "updated_unix_s": 1.0,
        }
    ).encode()  # fmt: skip


ENV = b'HEAD_IP=10.0.0.1\nWORKER_IPS="10.0.0.2 10.0.0.3"\nWORKER_USER=spark\nMODEL_DIR=~/m\nNNODES=3\nEP_SIZE=1\n'
LOGS = b"[2026-01-01 TP0] Load weight end.\ntorch.OutOfMemoryError: CUDA out of memory\nKilled\n2/3 clients joined\n"

TARGETS: dict[str, Target] = {
    "profiles": Target(
        (ROOT / "profiles" / "lab.yaml").read_bytes,
        lambda folder, data: load_profile(str(written(folder, "p.yaml", data))),
        (ConfigError,),
        "yaml",
    ),
    "cluster files": Target(
        lambda: (
            b"schema: sparkyard/cluster/v1\ntopology: single-host\nhead: a\ncheckpoint: {node: a, path: /c}\n"
            b"nodes: [{name: a, root: /a, transport: local}, {name: b, root: /b, port: 2222}]\n"
        ),
        lambda folder, data: load_cluster(written(folder, "c.yaml", data)),
        (ConfigError,),
        "yaml",
    ),
    "agent replies": Target(
        good_facts, lambda _, data: facts_of_node(data), (AskError, ValidationError), "json"
    ),
    "requests to the agent": Target(
        lambda: b'{"id": 1, "ask": "facts", "args": {}, "fence": 1}',
        lambda folder, data: read_line(written(folder, "line", data).open("rb")),
        (ValueError,),
        "json",
    ),
    "safetensors headers": Target(good_shard, shard, ()),
    "checkpoint indexes": Target(
        lambda: b'{"weight_map": {"norm.weight": "model.safetensors"}}', index, (), "json"
    ),
    "packed files": Target(good_layer, packed_file, (EngramError,)),
    "store manifests": Target(
        good_manifest,
        lambda _, data: manifest.decode(data, "manifest.json"),
        (EngramError,),
        "json",
    ),
    "stores on a node": Target(good_manifest, stores_of_node, (), "json"),
    "rank status files": Target(good_status, rank_status, (), "json"),
    "rank records": Target(
        lambda: (
            b'{"body": {"deployment": "d", "generation": 1, "rank": 0}, "identity": "' + b"5" * 64 + b'"}'
        ),
        rank_folder_spec,
        (),
        "json",
    ),
    "rank specs": Target(
        good_spec,
        lambda folder, data: rankspec.load(written(folder, "rank.json", data)),
        (rankspec.RankSpecError,),
        "json",
    ),
    "job status files": Target(
        lambda: b'{"state": "running", "done": 1, "total": 2, "code": 0}', job_files, (), "json"
    ),
    "job records": Target(
        lambda: b'{"id": "p", "kind": "pack", "identity": "' + b"5" * 64 + b'"}', job_record, (), "json"
    ),
    "small files of the agent": Target(
        lambda: b'{"a": 1}', lambda folder, data: files.read_json(written(folder, "f.json", data)), (), "json"
    ),
    "bundles": Target(
        good_capture,
        lambda folder, data: capture.load(written(folder, "b.json", data), now_unix_s=1.0),
        (ConfigError,),
        "json",
    ),
    "logs": Target(
        lambda: LOGS,
        lambda _, data: judge.explain({"rank-0/engine.log": data.decode("utf-8", "replace").splitlines()}),
        (),
    ),
    "events": Target(
        good_event, lambda _, data: happened_from_json(json.loads(data)), (ValueError, RecursionError), "json"
    ),
    "event files": Target(
        good_event,
        lambda folder, data: replay.read(written(folder, "events.jsonl", data)),
        (ConfigError,),
        "json",
    ),
    "metrics text": Target(
        (ROOT / "tests" / "cases" / "sglang-metrics.txt").read_bytes,
        lambda _, data: json.dumps(page.parse(data.decode("utf-8", "replace")), allow_nan=False),
        (),
    ),
    "environment files": Target(
        lambda: ENV, lambda _, data: envfile.import_env(data.decode("utf-8", "replace"), home="/home/x"), ()
    ),
    "bench records": Target(
        lambda: next((ROOT / "tests" / "cases" / "released").rglob("bench-record.json")).read_bytes(),
        lambda folder, data: store.read(str(written(folder, "r.json", data)), folder),
        (ConfigError,),
        "json",
    ),
    "image archives": Target(good_image, image_archive, (archive.BadArchive,)),
}
