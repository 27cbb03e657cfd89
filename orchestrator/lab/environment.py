"""The lab's engine environment: SGLang on the CPU, made once on first use from a hash lock.

It lives outside the controller's own environment, in ``<cache>/sparkyard/engine/<identity>``, where the
identity covers the lock, the stubs, the Python and the machine: a changed lock makes a new environment and
never edits an old one. The marker file is written last, so a folder without it is half-made and is made
again. Two makers exclude each other with a file lock, which the kernel drops when its holder dies.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.errors import SparkyardError
from orchestrator.lab.lock import Locked, TorchFile, identity, read_lock, refusal, torch_file

SIZE_BYTES = 2_900_000_000  # measured: 2.71 GB on x86-64 with Python 3.11, and pip's downloads of a moment
FREE_BYTES = 4_500_000_000  # the environment, and pip's temporary copy of the largest files
PIP_TIMEOUT_S = 1800.0  # per pip command; 60 s measured, a slow line needs minutes
CHECK_TIMEOUT_S = (
    300.0  # importing SGLang for the first time compiles its bytecode: 28 s measured on one core
)
POLL_S = 0.25
LOG_TAIL_LINES = 8
TORCH_VARIABLE = "SPARKYARD_TORCH_FROM"
ENGINE = Path(__file__).resolve().parents[2] / "engine"

# What the lab's ranks import; run once so that their bytecode exists (a first boot is 14 s faster per
# process).
_CHECK = (
    "import torch, sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler, "
    "sglang.srt.managers.detokenizer_manager, sglang.srt.layers.engram; "
    "from importlib.metadata import version; assert torch.version.cuda is None, torch.__version__; "
    "print(version('sglang'), torch.__version__)"
)

Progress = Callable[[int, int, str], None]
"""Called with (done, total, note); the unit is a step: each package counts once fetched and once
installed."""


class EnvironmentNotMadeError(SparkyardError):
    """The engine environment could not be made; the message has what was found, wanted, and the remedy."""


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """A complete environment. ``made_s`` is 0 when it was there already."""

    folder: Path
    python: Path
    identity: str
    size_bytes: int
    made_s: float


def environments_folder() -> Path:
    """Where environments live: ``${XDG_CACHE_HOME:-~/.cache}/sparkyard/engine``."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "sparkyard" / "engine"


def environment_identity(engine: Path = ENGINE) -> str:
    """Identity of the environment that this checkout, this Python and this machine need."""
    lock = (engine / "requirements-cpu.lock").read_text(encoding="utf-8")
    return identity(lock, _stubs(engine), f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine())


def ready(engine: Path = ENGINE, root: Path | None = None) -> EngineEnvironment | None:
    """The environment if it is there and complete, else None. Reads files only."""
    folder = (root or environments_folder()) / environment_identity(engine)
    try:
        marker = json.loads((folder / "complete.json").read_text(encoding="utf-8"))
        size_bytes = int(marker["size_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    python = folder / "bin" / "python"
    if not python.exists():
        return None
    return EngineEnvironment(folder, python, folder.name, size_bytes, made_s=0.0)


def ensure(
    progress: Progress,
    *,
    torch_from: str | None = None,
    engine: Path = ENGINE,
    root: Path | None = None,
    check: str = _CHECK,
) -> EngineEnvironment:
    """The environment, made now if it is missing or half-made.

    ``torch_from`` (default: the variable SPARKYARD_TORCH_FROM) is a folder with wheels, a wheel file or an
    index address to take the CPU build of torch from; without it pip's own configuration decides. Raises
    EnvironmentNotMadeError; whatever was made until then is thrown away by the next call.
    """
    there = ready(engine, root)
    if there is not None:
        return there
    folder = (root or environments_folder()) / environment_identity(engine)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_maker(folder, progress):
        there = ready(engine, root)
        if there is not None:  # another maker finished while this one waited
            return there
        return _make(folder, engine, progress, torch_from or os.environ.get(TORCH_VARIABLE) or None, check)


def _make(
    folder: Path, engine: Path, progress: Progress, torch_from: str | None, check: str
) -> EngineEnvironment:
    started = time.monotonic()
    lock_path = engine / "requirements-cpu.lock"
    locked = read_lock(lock_path.read_text(encoding="utf-8"))
    total = 2 * len(locked) + 3
    progress(0, total, f"makes the engine environment once, about {SIZE_BYTES / 1e9:.1f} GB in {folder}")
    _need_space(folder.parent)
    _discard(folder)
    _create(folder)
    pip = _Pip(folder, progress, total)
    if "pip" in locked:
        pip.install(_written(folder / "pip.lock", locked["pip"].text), note="pip")
    if "torch" in locked:
        pip.install(_torch_lock(folder, locked["torch"], pip, torch_from), note="torch (CPU)")
    pip.install(lock_path, note="SGLang and what it needs")
    for relative, content in _stubs(engine).items():
        target = pip.site_packages() / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    progress(total - 2, total, "imports SGLang once (compiles its bytecode)")
    versions = _checked(folder, check)
    size_bytes = sum(path.lstat().st_size for path in folder.rglob("*"))
    made_s = round(time.monotonic() - started, 1)
    marker = {
        "schema": "sparkyard/engine-environment/v1",
        "identity": folder.name,
        "versions": versions,
        "size_bytes": size_bytes,
        "made_s": made_s,
    }
    temporary = _written(folder / "complete.json.new", json.dumps(marker, sort_keys=True) + "\n")
    temporary.replace(folder / "complete.json")
    progress(total, total, f"engine environment ready: {size_bytes / 1e9:.1f} GB in {made_s:.0f} s")
    return EngineEnvironment(folder, folder / "bin" / "python", folder.name, size_bytes, made_s)


@contextmanager
def _only_maker(folder: Path, progress: Progress) -> Iterator[None]:
    with folder.with_name(folder.name + ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(0, 1, f"waits for another process that makes {folder}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _need_space(parent: Path) -> None:
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < FREE_BYTES:
        raise EnvironmentNotMadeError(
            f"{parent}: {free_bytes / 1e9:.1f} GB free, {FREE_BYTES / 1e9:.1f} GB needed while the "
            "environment is made. Free some space, or point XDG_CACHE_HOME at a larger disk."
        )


def _discard(folder: Path) -> None:
    """Throws a half-made folder away, out of the way first: a crash in here must not leave a mix."""
    for left in folder.parent.glob(f"{folder.name}.half.*"):
        shutil.rmtree(left, ignore_errors=True)
    if folder.exists():
        half = folder.with_name(f"{folder.name}.half.{os.getpid()}")
        folder.rename(half)
        shutil.rmtree(half, ignore_errors=True)


def _create(folder: Path) -> None:
    uv = shutil.which("uv")
    if importlib.util.find_spec("ensurepip") is not None:
        command = [sys.executable, "-m", "venv", str(folder)]
    elif uv is not None:
        command = [uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(folder)]
    else:
        minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise EnvironmentNotMadeError(
            f"{sys.executable} has no ensurepip and there is no uv: sudo apt install python{minor}-venv"
        )
    made = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    if made.returncode != 0:
        raise EnvironmentNotMadeError(f"{' '.join(command)} failed: {_tail(made.stdout + made.stderr)}")


class _Pip:
    """Runs pip inside the new environment and counts its packages."""

    def __init__(self, folder: Path, progress: Progress, total: int) -> None:
        self._folder, self._progress, self._total = folder, progress, total
        self._log = folder / "pip.log"
        self._fetched = 0

    def site_packages(self) -> Path:
        return next((self._folder / "lib").glob("python3.*")) / "site-packages"

    def resolve(self, arguments: Sequence[str]) -> dict[str, object]:
        """What pip would install for these arguments, without dependencies: its report. Fetches metadata
        only."""
        report = self._folder / "torch-report.json"
        self._run(
            ["--dry-run", "--ignore-installed", "--report", str(report), *arguments], note="looks for torch"
        )
        found: dict[str, object] = json.loads(report.read_text(encoding="utf-8"))
        return found

    def install(self, lock: Path, *, note: str) -> None:
        # No bytecode: the check compiles what is really imported, a third of it.
        self._run(["--require-hashes", "--no-compile", "--requirement", str(lock)], note=note)

    def _run(self, arguments: Sequence[str], *, note: str) -> None:
        command = [str(self._folder / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--no-cache-dir", "--progress-bar", "off", *arguments]
        with self._log.open("a+", encoding="utf-8") as log:
            begin = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                self._watch(process, begin, note)
            except BaseException:
                process.kill()
                process.wait()
                raise
            log.seek(begin)
            output = log.read()
        if process.returncode != 0:
            raise EnvironmentNotMadeError(f"pip failed ({note}); log in {self._log}: {_tail(output)}")
        self._fetched += _fetched(output) if "--dry-run" not in arguments else 0

    def _watch(self, process: subprocess.Popen[bytes], begin: int, note: str) -> None:
        deadline = time.monotonic() + PIP_TIMEOUT_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise EnvironmentNotMadeError(
                    f"pip took longer than {PIP_TIMEOUT_S:.0f} s ({note}); log in {self._log}"
                )
            with self._log.open(encoding="utf-8", errors="replace") as log:
                log.seek(begin)
                fetched = self._fetched + _fetched(log.read())
            installed = sum(1 for _ in self.site_packages().glob("*.dist-info"))
            self._progress(min(fetched + installed, self._total - 3), self._total, note)
            time.sleep(POLL_S)


def _fetched(output: str) -> int:
    return sum(line.startswith(("Collecting ", "Processing ")) for line in output.splitlines())


def _torch_lock(folder: Path, locked: Locked, pip: _Pip, torch_from: str | None) -> Path:
    """A lock of exactly the torch file that pip chose, after it was judged.

    The file is named by its address: given both digests, pip prefers the accelerator build of an index to a
    CPU build in a folder (seen with pip 26.3).
    """
    wanted = f"{locked.name}=={locked.version}"
    torch = _with_digest(torch_file(pip.resolve([*_source(torch_from), wanted])))
    reason = refusal(torch, locked, machine=platform.machine(), chosen_by_user=torch_from is not None)
    if reason is not None:
        raise EnvironmentNotMadeError(
            f"{reason} Name a source of the CPU build of torch {locked.version} for Python "
            f"{sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()} with --torch-from or "
            f"{TORCH_VARIABLE}: a folder of wheels, one wheel file, or the address of PyTorch's CPU index."
        )
    digest = f" --hash=sha256:{torch.digest}" if torch.digest else ""
    return _written(folder / "torch.lock", f"torch @ {torch.url}{digest}\n")


def _with_digest(torch: TorchFile) -> TorchFile:
    """Pip before 23.1 reports no digest of a file in a folder, and then refuses the file for the lack of it."""
    place = urlsplit(torch.url)
    if torch.digest or place.scheme != "file":
        return torch
    with Path(unquote(place.path)).open("rb") as file:
        return replace(torch, digest=hashlib.file_digest(file, "sha256").hexdigest())


def _source(torch_from: str | None) -> list[str]:
    if torch_from is None:
        return []
    if "://" in torch_from:
        return ["--index-url", torch_from]
    path = Path(torch_from).expanduser()
    if path.suffix == ".whl" and path.is_file():
        path = path.parent
    if not path.is_dir():
        raise EnvironmentNotMadeError(
            f"--torch-from {torch_from}: neither a folder, nor a wheel file, nor an address"
        )
    # Isolated: the folders of pip's own configuration would be searched as well.
    return ["--isolated", "--no-index", "--find-links", str(path.resolve())]


def _stubs(engine: Path) -> dict[str, bytes]:
    stubs = engine / "stubs"
    return {
        path.relative_to(stubs).as_posix(): path.read_bytes()
        for path in sorted(stubs.rglob("*.py"))
        if "__pycache__" not in path.parts
    }


def _checked(folder: Path, check: str) -> str:
    # A minimal environment, as a rank has it; PYTHONDONTWRITEBYTECODE of the caller would waste the check.
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path.home()),
        "SGLANG_USE_CPU_ENGINE": "1",
    }
    done = subprocess.run(
        [str(folder / "bin" / "python"), "-c", check],
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        check=False,
        env=environment,
        cwd=folder,
    )
    if done.returncode != 0:
        raise EnvironmentNotMadeError(
            f"{folder}: the new environment does not import SGLang: {_tail(done.stderr)}"
        )
    return done.stdout.strip()


def _written(path: Path, text: str) -> Path:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return path


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-LOG_TAIL_LINES:])


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m orchestrator.lab.environment``: makes the environment and prints the path of its Python."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.lab.environment", description=main.__doc__)
    parser.add_argument(
        "--torch-from", metavar="DIR|WHEEL|INDEX", help=f"source of the CPU build; also {TORCH_VARIABLE}"
    )
    parser.add_argument("--root", type=Path, help="where environments live (default: the user's cache)")
    options = parser.parse_args(arguments)
    last = ""

    def say(done: int, total: int, note: str) -> None:
        nonlocal last
        if note != last:
            last = note
            sys.stderr.write(f"[{done}/{total}] {note}\n")

    try:
        made = ensure(say, torch_from=options.torch_from, root=options.root)
    except EnvironmentNotMadeError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{made.python}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
