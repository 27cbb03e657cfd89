"""This checkout and the Python packages that it needs, as a disk of the virtual machines: they reach no network."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.integration.yard.state import run
from tests.standin_engine.lab import MODULES

ROOT = Path(__file__).resolve().parents[2]
PLACE = "/opt/checkout"
"""Where the machines see it: the disk is mounted at /opt."""
PYTHON = "/opt/venv/bin/python"
FOLDERS = ("orchestrator", "node_agent", "engine", "profiles")
NOT_NEEDED = frozenset({"matplotlib"})
"""Only reports are made with it; what it alone needs is left out too."""
ENGINE_PYTHON = "/opt/engine-python"
ENGINE = """#!/bin/sh
PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}/opt/standin" exec /opt/venv/bin/python "$@"
"""
"""The same Python with the stand-in engine in reach behind whatever PYTHONPATH it is given."""
NAME = re.compile(r"[A-Za-z0-9._-]+")


def disk(folder: Path) -> Path:
    """An ext4 image below ``folder`` with the checkout, the stand-in engine and a Python that finds their packages."""
    tree, image = folder / "product", folder / "product.img"
    checkout, venv = tree / "checkout", tree / "venv"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(MODULES, tree / "standin", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "engine-python").write_text(ENGINE)
    (tree / "engine-python").chmod(0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to(f"/usr/bin/{version}")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    packages = venv / "lib" / version / "site-packages"
    for distribution in needed():
        for path in distribution.files or ():
            if ".." in path.parts or path.parts[0] == "/":
                continue
            target = packages / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path.locate(), target)
    # compiled here: under emulation that takes a minute
    compiled = [sys.executable, "-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compiled, str(checkout), str(tree / "standin")], check=True, timeout=120)
    subprocess.run([*compiled, str(packages)], check=False, timeout=300, capture_output=True)
    size_kb = int(run("du", "-sk", str(tree)).split()[0]) * 5 // 4 + 16384
    run("mke2fs", "-q", "-t", "ext4", "-d", str(tree), "-F", str(image), f"{size_kb}k", timeout_s=120)
    shutil.rmtree(tree)
    return image


def needed() -> list[importlib.metadata.Distribution]:
    """The packages of the orchestrator's requirements and all that they need on this machine."""
    names = [line.split("#")[0] for line in (ROOT / "orchestrator/requirements.in").read_text().splitlines()]
    found: dict[str, importlib.metadata.Distribution] = {}
    while names:
        word = names.pop()
        match = NAME.match(word.strip())
        if match is None or "extra ==" in word:
            continue
        name = match[0].lower().replace("_", "-").replace(".", "-")
        if name in found or name in NOT_NEEDED:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # another system's
        names += found[name].requires or []
    return list(found.values())
