"""Tensor-parallel shards over NCCL on the GPUs of one host, and the host memory that NCCL pins.

Measures: (a) a DeepSeek-V4.1-shaped attention block (64 heads, padded where the ranks do not divide them) and
the Engram rows of a store on disk, sharded over N processes, against one process; all-reduce against
gathering columns. (b) Pinned host memory and all-reduce times under NCCL's defaults and under the profile's
settings, over P2P and over the network transport. NVLink multicast stays off.

    PYTHONPATH=.:engine python tests/bench/nccl_shards.py --ranks 2 --output nccl.json
    PYTHONPATH=.:engine python tests/bench/nccl_shards.py --ranks 3 --backend gloo      # correctness without
    a GPU PYTHONPATH=. python tests/bench/nccl_shards.py --beside-ledger nccl.json            # adds the
    ledger's prediction
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "profiles" / "deepseek-v4.1-flash-tp3.yaml"
OURS = ("NCCL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_CUMEM_ENABLE")
TRIAL_TIMEOUT_S = 120
ALWAYS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ALLOC",
    "OMP_NUM_THREADS": "1",
}
NETWORK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
EIGHT = {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}


def our_settings() -> dict[str, str]:
    """The NCCL settings of the shipped profile."""
    profile = yaml.safe_load(PROFILE.read_text("utf-8"))
    entries = [entry for entry in profile["settings"] if entry.get("env") in OURS]
    return {entry["env"]: str(entry["value"]) for entry in entries}


def trials() -> dict[str, dict[str, str]]:
    """Environments by name."""
    ours = our_settings()
    all_protocols = {name: value for name, value in ours.items() if name != "NCCL_PROTO"}
    return {
        "default, P2P": {},
        "ours, P2P": ours,
        "default, network": NETWORK,
        "ours, network": NETWORK | ours,
        "default, network, 8 channels": NETWORK | EIGHT,
        "ours, network, 8 channels": NETWORK | ours | EIGHT,
        "ours without NCCL_PROTO, network, 8 channels": NETWORK | all_protocols | EIGHT,
        "ours, network, 8 channels, 2 communicators": NETWORK | ours | EIGHT | {"COMMUNICATORS": "2"},
    }


def launch(part: str, ranks: int, backend: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Runs `ranks` processes under torchrun and gives what each found. Raises RuntimeError with the log's
    end."""
    with tempfile.TemporaryDirectory(prefix="nccl-shards-") as name:
        folder = Path(name)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
        arguments = [__file__, "--rank-work", part, "--folder", name, "--backend", backend]
        try:
            done = subprocess.run(
                [*command, *arguments],
                env=os.environ | ALWAYS | environment,
                capture_output=True,
                text=True,
                timeout=TRIAL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no end within {TRIAL_TIMEOUT_S} s") from None
        found = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
        if done.returncode or len(found) != ranks:
            raise RuntimeError((done.stdout + done.stderr)[-3000:])
        return found


def all_equal(shards: list[dict[str, Any]]) -> bool:
    """Whether every rank, data type and phase agrees with the one process."""
    return all(
        all(one["equal"] for one in rank["attention"]["dtypes"].values())
        and all(
            rank["engram"][phase][key]
            for phase in ("decode", "prefill")
            for key in ("all_reduce_equal", "gather_equal")
        )
        for rank in shards
    )


def run(ranks: int, backend: str) -> dict[str, Any]:
    """All trials; a trial that fails is reported as its error."""
    result: dict[str, Any] = {
        "schema": "sparkyard/nccl-shards/v1",
        "ranks": ranks,
        "backend": backend,
        "machine": machine(backend),
        "settings": our_settings(),
    }
    began = time.monotonic()
    try:
        result["shards"] = launch("shards", ranks, backend, {})
        result["equal"] = all_equal(result["shards"])
    except RuntimeError as problem:
        result["shards_error"] = str(problem)
    if backend == "nccl":
        result["memory"] = {}
        for name, environment in trials().items():
            try:
                found: Any = launch("memory", ranks, backend, environment)
            except RuntimeError as problem:
                found = {"error": str(problem)}
            result["memory"][name] = found
            print(f"{time.monotonic() - began:6.1f} s  {name}", file=sys.stderr, flush=True)
    return result


def machine(backend: str) -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    if backend == "nccl":
        found["gpu"] = f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}"
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def beside_ledger(path: Path) -> dict[str, Any]:
    """Adds to each rank of each memory trial what the ledger's arithmetic says for the connections that NCCL made.

    Measured is the growth of the process's shared pages less that of the trial without any connection, which is
    CUDA's own (its kernels load at the first collective) and stands in the ledger's line for the CUDA context.
    """
    from orchestrator.load import load_profile
    from orchestrator.plan import ledger
    from orchestrator.plan.settings import NCCL_BUFFER_BYTES, NCCL_LL128_BYTES, NCCL_LL_BYTES, sizes

    result: dict[str, Any] = json.loads(path.read_text())
    ours = sizes(load_profile(str(PROFILE)))
    default = dataclasses.replace(
        ours,
        nccl_buffer_bytes=NCCL_BUFFER_BYTES,
        nccl_ll128_bytes=NCCL_LL128_BYTES,
        nccl_ll_bytes=NCCL_LL_BYTES,
    )
    bare = result["memory"]["default, P2P"][0]
    cuda_bytes = bare["grown"]["process"]["Pss_Shmem"] - bare["nccl"]["host_pinned_bytes"]
    for name, ranks in result["memory"].items():
        asked = ours if name.startswith("ours") else default
        communicators = 2 if "2 communicators" in name else 1
        for rank in ranks:
            connections = sum(
                count for kind, count in rank["nccl"]["connections"].items() if kind.startswith("NET")
            )
            if not connections:
                continue
            expected = connections * ledger.nccl_connection_bytes(asked)
            expected += communicators * ledger.NCCL_COMMUNICATOR_BYTES
            measured = rank["grown"]["process"]["Pss_Shmem"] - cuda_bytes
            rank["beside_ledger"] = {
                "connections": connections,
                "ledger_bytes": expected,
                "measured_bytes": measured,
                "measured_over_ledger": round(measured / expected, 4),
            }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--beside-ledger", type=Path)
    parser.add_argument("--rank-work", choices=("shards", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_work:
        from tests.bench.nccl_worker import work

        found = work(options.rank_work, options.folder, options.backend)
        (options.folder / f"result-{found['rank']}.json").write_text(json.dumps(found))
        return 0
    result = (
        beside_ledger(options.beside_ledger) if options.beside_ledger else run(options.ranks, options.backend)
    )
    text = json.dumps(result, indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
    print(text)
    return 0 if result.get("equal") else 1


if __name__ == "__main__":
    sys.exit(main())
