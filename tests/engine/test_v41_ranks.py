"""The real `DeepseekV4ForCausalLM` at three ranks over gloo: padded shards, from the checkpoint and from slices."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.package import build_package
from sparkyard_engine import padding
from sparkyard_engine.slices import pack
from sparkyard_engine.slices.manifest import Identity
from tests.engine.v41_small import Dims, config, tensors, write

TP = 3
PADDED = {"num_attention_heads": 6, "o_groups": 3}
RANK = Path(__file__).with_name("v41_rank.py")
ROOT = RANK.parents[2]
TIMEOUT_S = 800  # half a minute on an idle machine of two cores
CPU = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1|0",
    "TORCHDYNAMO_DISABLE": "1",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine package as a node has it: unpacked, with the metadata by which SGLang finds the plug-in."""
    folder = tmp_path_factory.mktemp("engine")
    zipfile.ZipFile(io.BytesIO(build_package().content)).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("v41")
    made = tensors(Dims(), fp8=False)
    write(folder, Dims(), made, config(Dims()))
    return folder, made


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def spec(
    folder: Path, model: Path, rank: int, rendezvous: int, plugin: dict[str, Any], override: bool
) -> Path:
    words = ["--model-path", str(model), "--skip-tokenizer-init", "--device", "cpu", "--disable-cuda-graph"]
    words += [
        "--max-total-tokens",
        "4096",
        "--mem-fraction-static",
        "0.2",
        "--tp",
        str(TP),
        "--nnodes",
        str(TP),
    ]
    words += ["--node-rank", str(rank), "--dist-init-addr", f"127.0.0.1:{rendezvous}"]
    if override:
        words += ["--json-model-override-args", json.dumps(PADDED)]
    value = {
        "schema": "sparkyard/rank-spec/v1",
        "deployment": "v41",
        "generation": 1,
        "rank": rank,
        "tp": TP,
        "argv": [sys.executable, "-m", "sglang.launch_server", *words],
        "env": {},
        "directory": str(folder / f"rank{rank}"),
        "memory_floor_bytes": 0,
        "grace_s": 5,
        "api_port": None,
        "gate_port": None,
        "metrics_port": None,
        "plugin": {"engram": {"mode": "memory", "ownership": "contiguous"}, **plugin},
    }
    (folder / f"rank{rank}").mkdir(parents=True)
    path = folder / f"spec{rank}.json"
    path.write_text(json.dumps(value))
    return path


def start(package: Path, path: Path, out: Path) -> subprocess.Popen[bytes]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(RANK), str(out)],
            env={**inherited, **CPU, "PYTHONPATH": str(package), "SPARKYARD_RANK_SPEC": str(path)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def load(package: Path, folder: Path, model: Path, plugins: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Three ranks load the model; what each holds, and its proof."""
    rendezvous = port()
    running = [
        start(package, spec(folder, model, rank, rendezvous, plugins[rank], True), folder / f"rank{rank}.pt")
        for rank in range(TP)
    ]
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while any(each.poll() is None for each in running) and not any(each.poll() for each in running):
            assert time.monotonic() < deadline_s, "the ranks did not end"
            time.sleep(0.5)
    finally:
        for each in running:
            each.kill()
            each.wait()
    found = []
    for rank, each in enumerate(running):
        log = (folder / f"rank{rank}.log").read_text()
        assert each.returncode == 0, log[-3000:]
        held = torch.load(folder / f"rank{rank}.pt")
        assert held["class"] == "DeepseekV4ForCausalLM"
        proof = json.loads((folder / f"rank{rank}" / "proof.json").read_text())
        found.append({"parameters": held["parameters"], "proof": proof})
    return found


def joined(found: list[dict[str, Any]], name: str, axis: int) -> torch.Tensor:
    return torch.cat([each["parameters"][name] for each in found], axis)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_real_ranks_hold_the_padded_shards_from_checkpoint_and_from_slices(
    package: Path, checkpoint: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    model, made = checkpoint
    whole = load(package, tmp_path / "whole", model, [{"padding": PADDED}] * TP)
    plan = pack.plan_of(model, TP, PADDED)
    for layer in range(Dims().layers):
        for short, axis in (("wq_b.weight", 0), ("wo_a.weight", 0), ("wo_b.weight", 1)):
            name = f"layers.{layer}.attn.{short}"
            rule = plan.pads(name)
            assert rule is not None
            wanted = padding.apply(name, made[name], rule, plan.placement)
            found = joined(whole, f"model.layers.{layer}.self_attn.{short}", axis)
            assert torch.equal(found, wanted), name
        sinks = [each["parameters"][f"model.layers.{layer}.self_attn.attn_sink"] for each in whole]
        assert all(torch.equal(sinks[0], sink) for sink in sinks)
        assert int(torch.isinf(sinks[0]).sum()) == 2
    assert [each["proof"]["padded"] for each in whole] == [4 * Dims().layers] * TP
    assert {each["proof"]["weights"]["from"] for each in whole} == {"checkpoint"}

    digest = hashlib.sha256((model / pack.INDEX).read_bytes()).hexdigest()
    plugins: list[dict[str, Any]] = []
    for rank in range(TP):
        store = tmp_path / f"slices{rank}"
        pack.pack(pack.Job(model, Identity("r1", digest, TP, rank, PADDED), store, None))
        plugins.append({"padding": PADDED, "slices": {"store": str(store), "revision": "r1"}})
    # another rank's slices: refused by name, and the checkpoint is read instead
    plugins[2]["slices"]["store"] = str(tmp_path / "slices0")
    sliced = load(package, tmp_path / "sliced", model, plugins)
    assert [each["proof"]["weights"]["from"] for each in sliced] == ["slices", "slices", "checkpoint"]
    assert "rank: wanted 2, found 0" in sliced[2]["proof"]["weights"]["note"]
    for rank in range(TP):
        one, other = whole[rank]["parameters"], sliced[rank]["parameters"]
        assert one.keys() == other.keys()
        different = [name for name in one if not torch.equal(one[name], other[name])]
        assert different == []


def refused(package: Path, folder: Path, model: Path, plugin: dict[str, Any], more: str = "") -> str:
    path = spec(folder, model, 0, port(), plugin, True)
    if more:
        (folder / "sitecustomize.py").write_text(more)
    command = [sys.executable, str(RANK), str(folder / "out.pt")]
    done = subprocess.run(
        command,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **CPU,
            "PYTHONPATH": f"{folder}:{package}",
            "SPARKYARD_RANK_SPEC": str(path),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert not (folder / "out.pt").exists()
    return done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_missing_pad_and_a_renamed_symbol_refuse_to_start(
    package: Path, checkpoint: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    model, _ = checkpoint
    assert "2 groups do not divide by 3 ranks" in refused(package, tmp_path / "a", model, {"padding": {}})
    renamed = (
        "import sglang.srt.models.deepseek_v4 as m\n"
        "m.DeepseekV4ForCausalLM.read_weights = m.DeepseekV4ForCausalLM.load_weights\n"
        "del m.DeepseekV4ForCausalLM.load_weights\n"
    )
    (tmp_path / "b").mkdir()
    why = refused(package, tmp_path / "b", model, {"padding": PADDED}, renamed)
    assert "sglang.srt.models.deepseek_v4.DeepseekV4ForCausalLM.load_weights: gone" in why
