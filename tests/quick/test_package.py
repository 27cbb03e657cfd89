"""The engine package: same bytes for the same sources, and found by importlib.metadata where it is
unpacked."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.package import ENGINE, PackageError, build_package, write_package


def copied(folder: Path) -> Path:
    shutil.copytree(ENGINE, folder, ignore=shutil.ignore_patterns("__pycache__", "requirements-cpu.lock"))
    return folder


def test_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    copy = copied(tmp_path / "engine")
    for path in copy.rglob("*"):  # neither times, nor modes, nor compiled files may count
        os.utime(path, (1, 1))
        if path.is_file():
            path.chmod(0o600)
    (copy / "sparkyard_engine" / "__pycache__").mkdir()
    (copy / "sparkyard_engine" / "__pycache__" / "x.pyc").write_bytes(b"x")
    package = build_package(copy)
    assert package == build_package()
    assert hashlib.sha256(package.content).hexdigest() == package.digest


def test_any_change_of_a_source_is_another_package(tmp_path: Path) -> None:
    copy = copied(tmp_path / "engine")
    with (copy / "sparkyard_engine" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert build_package(copy).digest != build_package().digest


def test_unpacked_folder_is_a_distribution(tmp_path: Path) -> None:
    package = build_package()
    with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
        archive.extractall(tmp_path)
    code = (
        "from importlib.metadata import distribution, entry_points\n"
        "(point,) = entry_points(group='sglang.srt.plugins')\n"
        "files = distribution('sparkyard_engine').files\n"
        "bad = [f for f in files if f.hash and f.locate().stat().st_size != f.size]\n"
        "print(point.name, point.value, distribution('sparkyard_engine').version, len(bad), len(files) > 3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        "sparkyard",
        "sparkyard_engine.plugin:register",
        package.version,
        "0",
        "True",
    ]


def test_written_once_under_its_digest(tmp_path: Path) -> None:
    package = build_package()
    path = write_package(package, tmp_path / "blobs")
    written = path.stat().st_mtime_ns
    assert path.name == package.digest
    assert path.read_bytes() == package.content
    assert write_package(package, tmp_path / "blobs").stat().st_mtime_ns == written
    path.write_bytes(package.content[:100])  # a torn copy is replaced
    assert write_package(package, tmp_path / "blobs").read_bytes() == package.content
    assert [entry.name for entry in path.parent.iterdir()] == [package.digest]


def test_wrong_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=str(tmp_path)):
        build_package(tmp_path)
    copy = copied(tmp_path / "engine")
    text = (copy / "pyproject.toml").read_text(encoding="utf-8")
    (copy / "pyproject.toml").write_text(
        text.replace('entry-points."sglang.srt.plugins"', "other"), encoding="utf-8"
    )
    with pytest.raises(PackageError, match="entry-points"):
        build_package(copy)
