"""The engine environment is made once, whole, from the locked files only, and never from an accelerator
build."""

import base64
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from orchestrator.lab.environment import EnvironmentNotMadeError, ensure, ready
from orchestrator.lab.lock import read_lock

MAKING_TIMEOUT_S = 400
"""Against a hang: venv and pip take seconds on free cores, minutes on two that other suites share."""
CUDA_REQUIRES = (
    "filelock",
    "cuda-bindings<14,>=13.0.3; platform_system == 'Linux'",
    "nvidia-cudnn-cu13==9.20.0.48",
)


def wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> str:
    """Writes a wheel with one module; returns its SHA-256."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        f"{len(text.encode())}\n"
        for path, text in files.items()
    )
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    (folder / f"{name}-{version}-py3-none-any.whl").write_bytes(buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An engine folder whose lock names two tiny wheels in ``wheels/``, and one stub."""
    folder = tmp_path / "engine"
    (folder / "wheels").mkdir(parents=True)
    (folder / "stubs" / "thing").mkdir(parents=True)
    (folder / "stubs" / "thing" / "__init__.py").write_text("kernel = 'stub'\n", encoding="utf-8")
    torch = wheel(folder / "wheels", "torch", "2.13.0+cpu")
    thing = wheel(folder / "wheels", "thing", "1.0")
    lock = f"torch==2.13.0 \\\n    --hash=sha256:{torch}\nthing==1.0 \\\n    --hash=sha256:{thing}\n"
    (folder / "requirements-cpu.lock").write_text(lock, encoding="utf-8")
    return folder


def command(engine: Path, root: Path) -> list[str]:
    code = (
        "import sys; from pathlib import Path; from orchestrator.lab.environment import ensure\n"
        "say = lambda done, total, note: print(note, flush=True)\n"
        f"made = ensure(say, engine=Path({str(engine)!r}), root=Path({str(root)!r}),"
        f" torch_from={str(engine / 'wheels')!r},"
        " check='import thing, torch; assert thing.kernel == \"stub\"; print(torch.__version__)')\n"
        "print(made.python, made.made_s > 0)\n"
    )
    return [sys.executable, "-c", code]


def local_index(engine: Path) -> dict[str, str]:
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(engine / "wheels")}


def test_made_once_by_one_of_two_makers_and_again_when_half_made(engine: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    ours, environment = command(engine, root), local_index(engine)
    first = subprocess.Popen(ours, env=environment, stdout=subprocess.PIPE, text=True)
    second = subprocess.Popen(ours, env=environment, stdout=subprocess.PIPE, text=True)
    outputs = [
        first.communicate(timeout=MAKING_TIMEOUT_S)[0],
        second.communicate(timeout=MAKING_TIMEOUT_S)[0],
    ]
    assert (first.returncode, second.returncode) == (0, 0)
    assert sorted(output.split()[-1] for output in outputs) == ["False", "True"]
    there = ready(engine, root)
    assert there is not None
    assert there.size_bytes > 1_000_000

    shutil.copy(there.folder / "complete.json", tmp_path)
    (there.folder / "complete.json").unlink()  # as a maker leaves it that died before the end
    (there.folder / "left-over").touch()
    assert ready(engine, root) is None
    third = subprocess.Popen(ours, env=environment, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + MAKING_TIMEOUT_S
    while not (there.folder / "pip.log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    third.send_signal(signal.SIGKILL)
    third.communicate(timeout=MAKING_TIMEOUT_S)
    assert ready(engine, root) is None
    again = subprocess.run(
        ours, env=environment, capture_output=True, text=True, timeout=MAKING_TIMEOUT_S, check=True
    )
    assert again.stdout.split()[-1] == "True"
    assert not (there.folder / "left-over").exists()
    assert not list(root.glob("*.half.*"))


def test_accelerator_build_is_refused_with_the_option_named(engine: Path, tmp_path: Path) -> None:
    for path in (engine / "wheels").glob("torch-*"):
        path.unlink()
    wheel(engine / "wheels", "torch", "2.13.0", CUDA_REQUIRES)
    with pytest.raises(EnvironmentNotMadeError, match=r"cuda-bindings.*--torch-from or SPARKYARD_TORCH_FROM"):
        ensure(lambda *_: None, engine=engine, root=tmp_path / "root", torch_from=str(engine / "wheels"))
    assert ready(engine, tmp_path / "root") is None


def test_changed_file_is_refused(engine: Path, tmp_path: Path) -> None:
    lock = engine / "requirements-cpu.lock"
    text = lock.read_text(encoding="utf-8")
    digest = read_lock(text)["thing"].digests[0]
    lock.write_text(text.replace(digest, "0" * 64), encoding="utf-8")
    done = subprocess.run(
        command(engine, tmp_path / "root"),
        env=local_index(engine),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
