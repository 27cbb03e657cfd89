"""What sparkyard is made of: `python -m tests.supply [--output FOLDER] [--write]`.

From the hash locks and from the installed packages' own metadata: a bill of materials (CycloneDX 1.5, JSON) for the
controller, the engine on the CPU and the image, and the list of licences. `--write` renews docs/licences.md.
Exit code 1 when a package of the controller names no licence, or is installed in another version than the lock says.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
LOCKS = {
    "controller": ROOT / "orchestrator" / "requirements.lock",
    "engine on the CPU": ROOT / "engine" / "requirements-cpu.lock",
    "engine image": ROOT / "engine" / "requirements-image.lock",
    "tests": ROOT / "tests" / "requirements.lock",
}
ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?==(?P<version>[^\s;\\]+)(?P<rest>.*)$")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
UNKNOWN = "not stated"
ELSEWHERE = "not installed here"
LICENCE_MAX = 60
"""Some packages put the whole text where the name belongs."""
VENDORED = (
    ("node_agent/data/seccomp.json", "Docker's default seccomp profile (moby 20.10.24)", "Apache-2.0"),
)
READ_METADATA = """
import importlib.metadata as m, json
def one(d):
    e = d.metadata
    told = [c for c in e.get_all("Classifier") or [] if c.startswith("License ::") and c.count("::") > 1]
    classifiers = [c.split(" :: ")[-1] for c in told]
    return [e["Name"], d.version, e.get("License-Expression") or "", e.get("License") or "", classifiers]
print(json.dumps([one(d) for d in m.distributions() if d.metadata["Name"]]))
"""


@dataclass(frozen=True)
class Locked:
    """One line of a lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    marker: str

    @property
    def here(self) -> bool:
        """Whether this Python on this machine installs it."""
        return not self.marker or Marker(self.marker).evaluate()


def read_lock(path: Path) -> list[Locked]:
    """All packages of a lock, in its order. A lock without a hash for one of them is a ValueError."""
    found: list[Locked] = []
    text = path.read_text("utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if match := ENTRY.match(line.strip()):
            hashes = tuple(HASH.findall(match["rest"]))
            marker = match["rest"].partition(";")[2].partition("--hash")[0].strip()
            if not hashes:
                raise ValueError(f"{path}: {match['name']} has no hash")
            found.append(Locked(canonical(match["name"]), match["version"], hashes, marker))
    return found


def canonical(name: str) -> str:
    """As PyPI compares names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licences(python: str) -> dict[str, tuple[str, str]]:
    """Name -> (installed version, licence) of everything in an environment."""
    done = subprocess.run(
        [python, "-I", "-c", READ_METADATA], capture_output=True, text=True, check=True, timeout=60
    )
    found = {}
    for name, version, expression, text, classifiers in json.loads(done.stdout):
        short = text.strip().splitlines()[0].strip() if text.strip() else ""
        licence = expression or " OR ".join(classifiers) or (short if len(short) <= LICENCE_MAX else "")
        found[canonical(name)] = (version, licence or UNKNOWN)
    return found


def bill(part: str, locked: list[Locked], known: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """A CycloneDX document of one part; the same lock gives the same serial number."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    serial = uuid.uuid5(
        uuid.NAMESPACE_URL, f"sparkyard {part} " + " ".join(h for one in locked for h in one.hashes)
    )
    components = []
    for one in locked:
        properties = [{"name": "sparkyard:sha256-of-a-file", "value": digest} for digest in one.hashes]
        if one.marker:
            properties.append({"name": "sparkyard:marker", "value": one.marker})
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": f"pkg:pypi/{one.name}@{one.version}",
            "name": one.name,
            "version": one.version,
            "purl": f"pkg:pypi/{one.name}@{one.version}",
            "properties": properties,
        }
        licence = known.get(one.name, ("", UNKNOWN))[1]
        if licence != UNKNOWN:
            component["licenses"] = [{"license": {"name": licence}}]
        components.append(component)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": f"sparkyard {part}",
                "version": project["version"],
                "bom-ref": f"sparkyard-{canonical(part.replace(' ', '-'))}",
            }
        },
        "components": components,
    }


def licence_of(one: Locked, known: Mapping[str, tuple[str, str]]) -> str:
    """As this very version states it."""
    version, licence = known.get(one.name, ("", ELSEWHERE))
    return licence if version == one.version else ELSEWHERE


def page(locked: list[Locked], known: Mapping[str, tuple[str, str]]) -> str:
    """docs/licences.md: what the controller installs, and what this repository carries of others."""
    rows = [f"| {one.name} | {one.version} | {licence_of(one, known)} |" for one in locked]
    return "\n".join(
        [
            "# Licences",
            "",
            "Generated by `python -m tests.supply --write` from `orchestrator/requirements.lock` and the packages' own",
            "metadata. The node agent is standard library only. Bills of materials of all parts, the engine's among",
            "them, are written by `python -m tests.supply --output FOLDER` (CycloneDX 1.5) in every run of the gate.",
            "",
            "| package of the controller | version | licence |",
            "|---|---|---|",
            *rows,
            "",
            "| file of others in this repository | what | licence |",
            "|---|---|---|",
            *(f"| {path} | {what} | {licence} |" for path, what, licence in VENDORED),
            "",
        ]
    )


def faults(locked: list[Locked], known: Mapping[str, tuple[str, str]]) -> list[str]:
    """Of the controller: packages that are not what the lock says, or that name no licence."""
    found = []
    for one in locked:
        if not one.here:
            continue
        if one.name not in known:
            found.append(f"{one.name} {one.version} is locked and not installed")
            continue
        version, licence = known[one.name]
        if version != one.version:
            found.append(f"{one.name}: {version} is installed, the lock says {one.version}")
        if licence == UNKNOWN:
            found.append(f"{one.name} {version} names no licence")
    return found


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for the bills of materials")
    parser.add_argument("--write", action="store_true", help="renew docs/licences.md")
    parser.add_argument(
        "--engine-python", default="", help="Python of the engine's environment, for its licences"
    )
    asked = parser.parse_args()
    own = licences(sys.executable)
    engine = licences(asked.engine_python) if asked.engine_python else {}
    controller = read_lock(LOCKS["controller"])
    for part, lock in LOCKS.items():
        locked = read_lock(lock)
        known = own if part in {"controller", "tests"} else engine
        stated = sum(known.get(one.name, ("", UNKNOWN))[1] != UNKNOWN for one in locked)
        hashes = sum(len(one.hashes) for one in locked)
        sys.stdout.write(f"{part}: {len(locked)} packages, {hashes} hashes, {stated} licences known\n")
        if asked.output:
            asked.output.mkdir(parents=True, exist_ok=True)
            path = asked.output / f"{canonical(part.replace(' ', '-'))}.cdx.json"
            path.write_text(json.dumps(bill(part, locked, known), indent=1) + "\n")
    if asked.write:
        PAGE.write_text(page(controller, own))
    wrong = faults(controller, own)
    sys.stderr.write("".join(f"{fault}\n" for fault in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
