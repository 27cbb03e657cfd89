"""The engine package: ``engine/`` as one zip that every node unpacks and puts on PYTHONPATH.

The same sources give the same bytes on any machine (fixed order, times and modes, nothing compressed), so its
SHA-256 says what a node runs. The generated ``.dist-info`` lets ``importlib.metadata`` find the plug-in's
entry point in the unpacked folder, as if it had been installed.
"""

import base64
import hashlib
import io
import os
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import SparkyardError

ENGINE = Path(__file__).resolve().parents[1] / "engine"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold
FILE_MODE = 0o100644
SOURCE_FOLDERS = ("sparkyard_engine", "native")  # their layout below engine/ is kept
IMAGE_FILES = ("Dockerfile", "requirements-image.lock")  # the package is the build context of the image
SKIPPED_FOLDERS = frozenset({"__pycache__", "build"})
SKIPPED_SUFFIXES = frozenset({".pyc", ".so", ".o"})  # made on the node, for its machine


class PackageError(SparkyardError):
    """The engine package cannot be built; the message names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class EnginePackage:
    """The zip. ``digest`` is its SHA-256 (lower-case hex), by which nodes know it."""

    version: str
    digest: str
    content: bytes

    @property
    def name(self) -> str:
        """File name for people; nodes name it by the digest alone."""
        return f"sparkyard_engine-{self.version}-{self.digest[:16]}.zip"


def build_package(engine: Path = ENGINE) -> EnginePackage:
    """Builds the package from the sources below ``engine``. Raises PackageError."""
    try:
        project = tomllib.loads((engine / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        sources = {
            path.relative_to(engine).as_posix(): path.read_bytes()
            for folder in SOURCE_FOLDERS
            for path in sorted((engine / folder).rglob("*"))
            if path.is_file() and _shipped(path.relative_to(engine))
        }
        for name in IMAGE_FILES:
            if (recipe := engine / name).is_file():
                sources[name] = recipe.read_bytes()
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise PackageError(f"{engine}: {error}") from error
    if "sparkyard_engine/__init__.py" not in sources:
        raise PackageError(f"{engine}: no sparkyard_engine/__init__.py: not the engine's folder")
    files = sources | _dist_info(project, sources)
    content = _zip(files)
    return EnginePackage(str(project["version"]), hashlib.sha256(content).hexdigest(), content)


def write_package(package: EnginePackage, folder: Path) -> Path:
    """Writes the package below ``folder`` under its digest, if it is not there; returns its path."""
    path = folder / package.digest
    if path.is_file() and path.stat().st_size == len(package.content):
        return path
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{package.digest[:16]}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            file.write(package.content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PackageError(f"{path}: {error.strerror}") from error
    return path


def _shipped(path: Path) -> bool:
    return not SKIPPED_FOLDERS.intersection(path.parts) and path.suffix not in SKIPPED_SUFFIXES


def _dist_info(project: Mapping[str, object], sources: Mapping[str, bytes]) -> dict[str, bytes]:
    name, version = project["name"], project["version"]
    folder = f"{name}-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
    ]
    groups = project.get("entry-points")
    if not isinstance(groups, Mapping) or not groups:
        raise PackageError(
            "engine/pyproject.toml: project.entry-points is missing: SGLang would load nothing"
        )
    entries = [
        line
        for group, points in sorted(groups.items())
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in sorted(points.items())), "")
    ]
    files = {
        f"{folder}/METADATA": ("\n".join(metadata) + "\n").encode(),
        f"{folder}/entry_points.txt": "\n".join(entries).encode(),
    }
    record = [_record(path, content) for path, content in sorted({**sources, **files}.items())]
    files[f"{folder}/RECORD"] = "".join([*record, f"{folder}/RECORD,,\n"]).encode()
    return files


def _record(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    # Stored, not deflated: the compressed bytes would depend on the zlib of the machine.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.create_system = 3  # Unix, wherever it is built
            entry.external_attr = FILE_MODE << 16
            archive.writestr(entry, files[path])
    return buffer.getvalue()
