"""The plug-in: rows from disk are SGLang's own, and whatever does not fit ends the process with the
reason."""

import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab_small import TP
from safetensors import safe_open

from orchestrator.package import build_package
from sparkyard_engine import drift, life, plugin, rankspec
from sparkyard_engine.asked import RefusedError, asked
from sparkyard_engine.drift import Symbol
from sparkyard_engine.engram.errors import EngramError
from sparkyard_engine.engram.hashing import Layout
from sparkyard_engine.engram.reader import Reader
from sparkyard_engine.engram.torch_side.embedding import DiskEmbedding


def body(checkpoint: Path, store: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    """A rank spec of rank 0 of three."""
    spec: dict[str, Any] = {
        "schema": rankspec.SCHEMA,
        "deployment": "test",
        "generation": 1,
        "rank": 0,
        "tp": TP,
        "argv": [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(checkpoint),
            "--device",
            "cpu",
        ],
        "env": {},
        "directory": str(folder),
        "memory_floor_bytes": 0,
        "grace_s": 5,
        "api_port": None,
        "gate_port": None,
        "metrics_port": None,
        "plugin": {
            "engram": {"mode": "disk", "store": str(store), "ownership": "balanced"},
            "padding": {"num_attention_heads": 12, "o_groups": 6},
            "settings": {},
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = spec
        for key in parents:
            target = target[key]
        target[last] = value
    return spec


def test_rows_of_all_ranks_together_are_the_stock_table(checkpoint: Path, stores: list[Path]) -> None:
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text(encoding="utf-8"))[
        "weight_map"
    ]
    layout = Layout.from_config(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))
    for layer in (1, 3):
        name = f"layers.{layer}.engram.embed."
        with safe_open(checkpoint / index[name + "weight"], "pt") as shard:
            weight, scale = shard.get_tensor(name + "weight"), shard.get_tensor(name + "scale")
        bounds = np.asarray(layout.bounds(layer))  # the hash gives each column ids of its own range only
        ids = torch.from_numpy(np.random.default_rng(layer).integers(bounds[:-1], bounds[1:], (40, 24)))
        ids[3] = ids[2]  # repeats in a batch
        rows = weight[ids].float().unflatten(-1, (-1, 32))
        stock = (rows * scale[ids].float().unsqueeze(-1)).flatten(-2).to(torch.bfloat16)
        total = torch.zeros_like(stock)
        owned = torch.zeros(ids.shape, dtype=torch.int64)
        for store in stores:
            with Reader(store, layer) as reader:
                part = DiskEmbedding(reader, 24, reduce=lambda rows: rows).rows(ids)
                owned += torch.from_numpy(reader.slice.owned(ids.numpy().reshape(-1)).reshape(ids.shape))
            total += part
        assert owned.eq(1).all()
        assert total.eq(stock).all()


def test_every_symbol_is_there_in_this_sglang(checkpoint: Path, stores: list[Path], tmp_path: Path) -> None:
    want = asked(rankspec.parse(body(checkpoint, stores[0], tmp_path)))
    assert (want.mode, want.heads, want.groups, want.to_pad, want.engram_layers) == (
        "disk",
        12,
        6,
        16,
        (1, 3),
    )
    assert drift.problems(plugin.symbols(want)) == []


def test_drift_is_refused_by_name() -> None:
    symbols = (
        Symbol("sglang.srt.layers.engram.EngramEmbedding.forward", ("self", "ids")),
        Symbol("sglang.srt.layers.engram.EngramTable"),
        Symbol("sglang.srt.layers.no_such_module.x"),
        Symbol("sglang.srt.layers.linear._is_cpu", ()),
    )
    problems = drift.problems(symbols)
    assert len(problems) == 4
    assert (
        "expected parameters (self, ids), found (self, indices, forward_batch, cp_all_tokens)" in problems[0]
    )
    assert "EngramTable: gone" in problems[1]
    assert "no_such_module" in problems[2]
    assert "expected something that can be called, found bool" in problems[3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rank": 1}, "other_rank"),
        ({"tp": 6, "plugin__padding__o_groups": 6}, "other_tp"),
        ({"plugin__engram__ownership": "rows"}, "other_ownership"),
        ({"plugin__engram__ownership": "mine"}, "mine"),
        ({"plugin__engram__mode": "nvme"}, "expected disk or memory, found 'nvme'"),
        ({"plugin__engram__store": "/nowhere"}, "no packed store here"),
        ({"plugin__padding__num_attention_heads": 10}, "a group must keep its 2 heads"),
        ({"plugin__padding": {}}, "4 groups do not divide by 3 ranks"),
        ({"plugin__settings": {"engram_cash_bytes": 1}}, "engram_cash_bytes: unknown"),
        ({"plugin__settings": {"engram_cache_bytes": -1}}, "expected bytes, found -1"),
        ({"argv": ["/usr/bin/python3"]}, "--model-path is missing"),
        ({"argv": ["/usr/bin/python3", "--model-path=/nowhere"]}, "/nowhere/config.json"),
    ],
)
def test_what_cannot_be_met_is_refused(
    checkpoint: Path, stores: list[Path], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    spec = rankspec.parse(body(checkpoint, stores[0], tmp_path, **changes))
    with pytest.raises((RefusedError, EngramError), match=words.replace("(", r"\(")):
        plugin.symbols(asked(spec))


def test_store_of_another_checkpoint_is_refused(checkpoint: Path, stores: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in checkpoint.iterdir():
        (other / path.name).symlink_to(path)
    index = other / "model.safetensors.index.json"
    text = index.read_text(encoding="utf-8")
    index.unlink()
    index.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(EngramError, match="other_model"):
        asked(rankspec.parse(body(other, stores[0], tmp_path)))


def test_unknown_architecture_is_refused(checkpoint: Path, stores: list[Path], tmp_path: Path) -> None:
    want = asked(rankspec.parse(body(checkpoint, stores[0], tmp_path)))
    with pytest.raises(RefusedError, match="MysteryForCausalLM"):
        plugin.symbols(replace(want, architecture="MysteryForCausalLM"))


def test_sglang_itself_ends_when_the_plugin_cannot_do_its_work(
    checkpoint: Path, stores: list[Path], tmp_path: Path
) -> None:
    """Through SGLang's real plug-in loader, which swallows exceptions, and the real package on PYTHONPATH."""
    with zipfile.ZipFile(io.BytesIO(build_package().content)) as archive:
        archive.extractall(tmp_path / "package")
    results = {}
    for name, store in (("right", stores[0]), ("wrong", stores[2])):
        spec = tmp_path / f"{name}.json"
        spec.write_text(json.dumps(body(checkpoint, store, tmp_path)), encoding="utf-8")
        code = (
            "from sglang.srt.plugins import load_plugins\nload_plugins()\n"
            "from sglang.srt.layers import engram, linear\n"
            "print('went on', engram.EngramEmbedding.__name__, linear._is_cpu)\n"
        )
        results[name] = subprocess.run(
            [sys.executable, "-c", code],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(Path.home()),
                "SGLANG_USE_CPU_ENGINE": "1",
                "PYTHONPATH": str(tmp_path / "package"),
                rankspec.SPEC_VARIABLE: str(spec),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert results["right"].returncode == 0, results["right"].stderr
    assert "went on DiskEngramEmbedding False" in results["right"].stdout
    assert results["wrong"].returncode == 1
    assert "went on" not in results["wrong"].stdout
    assert "sparkyard plug-in: other_rank" in results["wrong"].stderr


def rows() -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "tp": 3,
            "mode": "disk",
            "ownership": "balanced",
            "padded": 16,
            "slots": [0, None, 1, None, 2, 3],
            "store_id": f"store-{rank}",
        }
        for rank in range(3)
    ]


def test_ranks_that_fit_together_have_nothing_against_each_other() -> None:
    assert life.disagreements(rows()) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", 0),
        ("mode", "memory"),
        ("ownership", "rows"),
        ("padded", 12),
        ("store_id", "store-0"),
        ("slots", []),
    ],
)
def test_a_rank_that_does_not_fit_is_named(key: str, value: object) -> None:
    changed = rows()
    changed[1][key] = value
    (fault,) = life.disagreements(changed)
    assert key.partition("_")[0] in fault
