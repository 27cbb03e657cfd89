"""Finds the flags and environment variables that the engine's packages know; records them for the controller.

python tests/engine/names.py            # rewrite the SGLang and torch lists from this environment
python tests/engine/names.py LIBNCCL    # rewrite the NCCL list from a libnccl.so.2
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "orchestrator" / "data"
VARIABLE = re.compile(rb"\b(?:NCCL_|TORCH|PYTORCH_|GLOO_|CUDA_|OMP_|TRITON_|MAX_)[A-Z0-9_]*[A-Z0-9]\b")
QUOTED = re.compile(
    r"""["']([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)["']|^\s+((?:SGLANG|SGL)_[A-Z0-9_]+)\s*=""", re.MULTILINE
)


def sglang_flags() -> list[str]:
    """Every long option of SGLang's own argument parser."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return sorted(name for name in parser._option_string_actions if name.startswith("--"))


def sglang_variables() -> list[str]:
    """Names that occur quoted in SGLang's sources or are declared in its `environ.py`."""
    found: set[str] = set()
    for path in package("sglang").rglob("*.py"):
        for quoted, declared in QUOTED.findall(path.read_text("utf-8", "replace")):
            found.add(quoted or declared)
    known = (
        "SGLANG_",
        "SGL_",
        "NCCL_",
        "GLOO_",
        "TORCH",
        "PYTORCH_",
        "CUDA_",
        "OMP_",
        "FLASHINFER_",
        "TRITON_",
    )
    return sorted(name for name in found if name.startswith(known))


def torch_variables() -> list[str]:
    """Names that occur in torch's libraries and Python sources."""
    found: set[bytes] = set()
    folder = package("torch")
    for path in (*folder.glob("lib/*.so*"), *folder.rglob("*.py")):
        if path.is_file():
            found.update(VARIABLE.findall(path.read_bytes()))
    return sorted(name.decode() for name in found)


def library_variables(path: Path) -> list[str]:
    """Names of NCCL's parameters in its library."""
    names = set(re.findall(rb"\bNCCL_[A-Z0-9_]*[A-Z0-9]\b", path.read_bytes()))
    return sorted(name.decode() for name in names)


def package(name: str) -> Path:
    """The installed package's folder, found without importing it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def write(name: str, version: str, **lists: list[str]) -> None:
    """Rewrite one list."""
    DATA.mkdir(exist_ok=True)
    value = {"schema": "sparkyard/engine-names/v1", "package": name, "version": version, **lists}
    (DATA / f"{name}-names.json").write_text(json.dumps(value, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write("nccl", "2.30.7", env=library_variables(Path(sys.argv[1])))
    else:
        write("sglang", importlib.metadata.version("sglang"), flags=sglang_flags(), env=sglang_variables())
        write("torch", importlib.metadata.version("torch"), env=torch_variables())
