"""The load probes: what they measure where they can, and what they say where they cannot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from node_agent.facts import Live
from node_agent.probes import gpu, kernels, nvme
from orchestrator.model.probes import BurnProbe, GemvProbe, NvmeProbe

HAS_GPU = shutil.which("nvidia-smi") is not None
PTXAS = shutil.which("ptxas")


def test_the_nvme_probe_measures_and_leaves_nothing(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    try:
        found = NvmeProbe.model_validate(
            nvme.measure(tmp_path, seen.append, size_bytes=16 << 20, seconds=0.2)
        )
    except gpu.ProbeError as error:
        pytest.skip(str(error))  # a file system without direct reads, tmpfs for one
    assert found.qd1_iops > 0
    assert found.qd64_iops > 0
    assert found.mismatches == 0
    assert seen
    assert list(tmp_path.iterdir()) == []


def test_the_nvme_probe_refuses_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(gpu.ProbeError, match="free"):
        nvme.measure(tmp_path, lambda _: None, size_bytes=1 << 60)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_a_driver_the_burn_says_so() -> None:
    with pytest.raises(gpu.ProbeError, match=r"libcuda\.so\.1"):
        gpu.burn(Live(), lambda _: None, seconds=1.0)


@pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")
def test_the_gpu_probes_run_on_a_gpu() -> None:
    burned = BurnProbe.model_validate(gpu.burn(Live(), lambda _: None, seconds=6.0))
    assert burned.tflops
    assert max(sample.utilization_percent or 0 for sample in burned.samples) >= 90
    moved = GemvProbe.model_validate(gpu.gemv(Live(), lambda _: None, seconds=3.0))
    assert min(moved.gigabytes_per_s) > 0
    assert moved.copy_gigabytes_per_s


@pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")
@pytest.mark.parametrize("architecture", ["sm_90", "sm_121"])
def test_the_ptx_is_valid(architecture: str, tmp_path: Path) -> None:
    (tmp_path / "probe.ptx").write_text(kernels.PTX)
    command = [
        str(PTXAS),
        f"-arch={architecture}",
        str(tmp_path / "probe.ptx"),
        "-o",
        str(tmp_path / "probe.cubin"),
    ]
    assert subprocess.run(command, capture_output=True, check=False).stderr == b""
