"""The load probes: what they measure where they can, and what they say where they cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest

from node_agent.facts import Live, Recorded
from node_agent.probes import collective, gpu, kernels, nvme, perftest
from orchestrator.model.probes import BurnProbe, GemvProbe, NvmeProbe

HAS_GPU = shutil.which("nvidia-smi") is not None


def ptxas() -> Path:
    """The assembler of the locked package, whose wheel does not mark it as executable."""
    (found,) = (path for path in files("nvidia-cuda-nvcc-cu12") or () if path.name == "ptxas")
    return Path(str(found.locate()))


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
    assert found.sequential_gigabytes_per_s
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


@pytest.mark.skipif(sys.platform != "linux", reason="its package exists for Linux")
@pytest.mark.parametrize("architecture", ["sm_90", "sm_121"])
def test_the_ptx_is_valid(architecture: str, tmp_path: Path) -> None:
    (tmp_path / "probe.ptx").write_text(kernels.PTX)
    program = shutil.copy(ptxas(), tmp_path)
    Path(program).chmod(0o700)
    cubin = tmp_path / "probe.cubin"
    command = [program, f"-arch={architecture}", str(tmp_path / "probe.ptx"), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert cubin.read_bytes().startswith(b"\x7fELF")


def test_a_collective_that_ends_without_a_result_has_failed() -> None:
    found = collective.run(
        ["sh", "-c", "echo ibv_reg_mr_iova2 failed: Cannot allocate memory; exit 1"], {}, None
    )
    assert not found["ok"]
    assert "ibv_reg_mr_iova2" in found["text"]
    with pytest.raises(gpu.ProbeError, match="No such file"):
        collective.run(["/nonexistent/python"], {}, None)


def test_the_transport_is_read_from_the_log_of_nccl() -> None:
    log = "spark-1:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]; OOB enP7s7\n"
    end = 'SPARKYARD {"right": true, "gigabytes_per_s": 22.1, "nccl": "2.28.3", "backend": "nccl"}\n'
    assert collective.parse(log + end) == {"gigabytes_per_s": 22.1, "transport": "NET/IB", "right": True}
    assert collective.parse(log.replace("NET/IB", "NET/Socket") + end)["transport"] == "NET/Socket"


@pytest.mark.parametrize("device", ["rocep1s0f0; reboot", "", "$(id)"])
def test_no_odd_device_reaches_a_command_line(device: str) -> None:
    with pytest.raises(ValueError, match="not a device"):
        perftest.command(device, 3, 18515, "192.168.0.1")


def test_the_bandwidth_is_the_average_column() -> None:
    text = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    row = " 65536      882805           0.00               92.57                0.176554\n"
    assert perftest.parse_bandwidth(text + row) == 92.57
    assert perftest.parse_bandwidth(text) is None


REPORT = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : rocep1s0f1
 Number of qps   : 1\t\tTransport type : IB
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 3
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0091 PSN 0xd5a1c RKey 0x1fff00 VAddr 0x0073a1b8a00000
 GID:            00:00:00:00:00:00:00:00:00:00:255:255:192:168:200:13
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]    MsgRate[Mpps]
 65536      882805           0.00               92.57                0.176554
---------------------------------------------------------------------------------------
"""
"""As NVIDIA's performance guide prints it for one twin."""
SENDS = perftest.command("rocep1s0f1", 3, 18515, "192.168.200.12")
LISTENS = perftest.command("rocep1s0f1", 3, 18515, None)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "perftest is not installed (apt install perftest)"),
        ({"hangs": True}, "did not answer within 18 s"),
        (
            {
                "status": 1,
                "err": " Couldn't connect to 192.168.200.12:18515\n Unable to open file descriptor",
            },
            "Couldn't connect",
        ),
        (
            {"status": 1, "err": " Did not detect devices \n If device exists, check if driver is up\n"},
            "Did not detect",
        ),
        ({"status": 0, "out": REPORT.rpartition(" 65536")[0]}, "ib_write_bw on rocep1s0f1"),
    ],
)
def test_why_the_bandwidth_could_not_be_measured_is_said(answer: Any, said: str) -> None:
    source = Recorded({"commands": {" ".join(SENDS): answer} if answer else {}})
    with pytest.raises(gpu.ProbeError) as caught:
        perftest.run(source, "rocep1s0f1", 3, 18515, "192.168.200.12")
    assert said in str(caught.value)


def test_both_sides_of_a_recorded_measurement() -> None:
    recorded = {" ".join(SENDS): REPORT, " ".join(LISTENS): "* Waiting for client to connect... *\n" + REPORT}
    source = Recorded({"commands": recorded})
    assert perftest.run(source, "rocep1s0f1", 3, 18515, "192.168.200.12") == {"gbps": 92.57}
    assert perftest.run(source, "rocep1s0f1", 3, 18515, None) == {"gbps": 92.57}


@pytest.mark.skipif(
    shutil.which(perftest.TOOL) is None or Path("/sys/class/infiniband").is_dir(),
    reason="needs perftest and a machine without RDMA",
)
def test_the_real_tool_without_a_device_is_an_answer() -> None:
    with pytest.raises(gpu.ProbeError, match=r"rdma: ib_write_bw on rocep1s0f1: (?s:.)*[Dd]evice"):
        perftest.run(Live(), "rocep1s0f1", 3, 18515, "127.0.0.1")
