"""What the engine environment is made of, read from its hash lock. Pure: text in, frozen values out."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)")
_DIGEST = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")
_ACCELERATOR = re.compile(r"^(nvidia|cuda|triton|rocm|intel-sycl|pytorch-triton)\b", re.IGNORECASE)
_FOREIGN_MACHINE = re.compile(r"platform_machine\s*==\s*[\"'](?P<machine>[^\"']+)[\"']")


@dataclass(frozen=True, slots=True)
class Locked:
    """One requirement of a lock: name as written, exact version, accepted SHA-256 digests, its own lines."""

    name: str
    version: str
    digests: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class TorchFile:
    """The one file of torch that pip would install. ``digest`` is empty where the source publishes none."""

    version: str
    url: str
    digest: str
    requires: tuple[str, ...]


def read_lock(text: str) -> Mapping[str, Locked]:
    """Requirements of a pip hash lock by lower-case name. Raises ValueError on a requirement without a
    digest."""
    found: dict[str, Locked] = {}
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith((" ", "\t")) and block:
            block.append(line)
            continue
        if block:
            locked = _locked("\n".join(block))
            found[locked.name.lower()] = locked
            block = []
        if line.strip() and not line.startswith("#"):
            block = [line]
    return found


def _locked(block: str) -> Locked:
    head = _REQUIREMENT.match(block)
    digests = tuple(match["digest"] for match in _DIGEST.finditer(block))
    if head is None or not digests:
        raise ValueError(f"not a pinned requirement with digests: {block.splitlines()[0]}")
    return Locked(name=head["name"], version=head["version"], digests=digests, text=block + "\n")


def identity(lock: str, stubs: Mapping[str, bytes], python: str, machine: str) -> str:
    """16 hex digits that name an environment: its lock, its stubs by path, the Python ("3.11") and the
    machine."""
    digest = hashlib.sha256()
    for part in (python, machine, lock):
        digest.update(f"{len(part)}:{part}".encode())
    for path in sorted(stubs):
        digest.update(f"{path}:{len(stubs[path])}:".encode())
        digest.update(stubs[path])
    return digest.hexdigest()[:16]


def accelerator_parts(torch: TorchFile, machine: str) -> tuple[str, ...]:
    """What makes this build of torch one for accelerators: the requirements that only such a build has.

    Empty for a CPU build. A requirement whose marker names another machine does not count.
    """
    wanted: list[str] = []
    for requirement in torch.requires:
        foreign = _FOREIGN_MACHINE.search(requirement)
        if "extra ==" in requirement or (foreign is not None and foreign["machine"] != machine):
            continue
        if _ACCELERATOR.match(requirement):
            wanted.append(requirement.split(";")[0].strip())
    return tuple(wanted)


def refusal(torch: TorchFile, locked: Locked, *, machine: str, chosen_by_user: bool) -> str | None:
    """Why this file of torch must not be installed, or None.

    A source that the user named is trusted for its digest (PyTorch publishes CPU builds per Python and
    machine, and the lock knows one of them), never for being a CPU build.
    """
    parts = accelerator_parts(torch, machine)
    if parts:
        return (
            f"pip would take torch {torch.version}, a build for accelerators: it asks for "
            f"{', '.join(parts[:3])}{' …' if len(parts) > 3 else ''}, several GB of downloads. "
            "The lab needs the CPU build."
        )
    if torch.digest not in locked.digests and not chosen_by_user:
        digest = torch.digest or "(not published)"
        return f"The file of torch that pip would take has SHA-256 {digest}, which the lock does not list."
    return None


def torch_file(report: Mapping[str, object]) -> TorchFile:
    """The torch file in a ``pip install --dry-run --report``. Raises ValueError if the report names none."""
    for entry in _items(report.get("install")):
        metadata, download = _object(entry.get("metadata")), _object(entry.get("download_info"))
        if str(metadata.get("name", "")).lower() != "torch":
            continue
        hashes = _object(_object(download.get("archive_info")).get("hashes"))
        requires = metadata.get("requires_dist")
        return TorchFile(
            version=str(metadata.get("version")),
            url=str(download.get("url")),
            digest=str(hashes.get("sha256", "")),
            requires=tuple(str(line) for line in requires) if isinstance(requires, Sequence) else (),
        )
    raise ValueError("pip's report names no file of torch")


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> list[Mapping[str, object]]:
    return [_object(item) for item in value] if isinstance(value, list) else []
