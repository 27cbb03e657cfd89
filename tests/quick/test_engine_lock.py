"""What the engine environment is made of: which lock, which torch."""

import pytest

from orchestrator.lab.environment import ENGINE
from orchestrator.lab.lock import TorchFile, accelerator_parts, identity, read_lock, refusal

CPU_WHEEL = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
CUDA_REQUIRES = (
    "filelock",
    "cuda-bindings<14,>=13.0.3; platform_system == 'Linux'",
    "nvidia-cudnn-cu13==9.20.0.48",
)


def test_the_lock_is_whole() -> None:
    text = (ENGINE / "requirements-cpu.lock").read_text(encoding="utf-8")
    locked = read_lock(text)
    wanted = (ENGINE / "requirements-cpu.in").read_text(encoding="utf-8").splitlines()
    pins = {
        line.split("==")[0].lower().replace("_", "-"): line.split("==")[1]
        for line in wanted
        if "==" in line[:60]
    }
    assert {name.replace("_", "-"): entry.version for name, entry in locked.items()} == pins
    assert locked["sglang"].version == "0.5.23"
    assert CPU_WHEEL in locked["torch"].digests


def test_which_torch_is_a_cpu_build() -> None:
    locked = read_lock(f"torch==2.13.0 \\\n    --hash=sha256:{CPU_WHEEL}\n")["torch"]
    cpu = TorchFile("2.13.0+cpu", "file:///x.whl", CPU_WHEEL, ("filelock", 'optree; extra == "optree"'))
    cuda = TorchFile("2.13.0", "https://x/y.whl", CPU_WHEEL, CUDA_REQUIRES)
    arm = TorchFile("2.13.0", "https://x/z.whl", CPU_WHEEL, ('nvidia-cublas; platform_machine == "x86_64"',))
    other = TorchFile("2.13.0+cpu", "https://x/w.whl", "1" * 64, ())
    assert refusal(cpu, locked, machine="x86_64", chosen_by_user=False) is None
    assert refusal(arm, locked, machine="aarch64", chosen_by_user=False) is None
    assert accelerator_parts(arm, "x86_64") == ("nvidia-cublas",)
    assert "accelerators" in str(refusal(cuda, locked, machine="x86_64", chosen_by_user=True))
    assert "lock does not list" in str(refusal(other, locked, machine="x86_64", chosen_by_user=False))
    assert refusal(other, locked, machine="x86_64", chosen_by_user=True) is None


def test_identity_covers_lock_stubs_python_and_machine() -> None:
    base = ("lock", {"a.py": b"1"}, "3.11", "x86_64")
    variants = [
        ("lock2", base[1], "3.11", "x86_64"),
        ("lock", {"a.py": b"2"}, "3.11", "x86_64"),
        ("lock", {"b.py": b"1"}, "3.11", "x86_64"),
        ("lock", base[1], "3.12", "x86_64"),
        ("lock", base[1], "3.11", "aarch64"),
    ]
    assert len({identity(*base), *(identity(*variant) for variant in variants)}) == 6


def test_requirement_without_digest_is_an_error() -> None:
    with pytest.raises(ValueError, match="torch"):
        read_lock("torch==2.13.0\n")
