"""Compiles, while the image is built, what FlashInfer would otherwise compile at the first boot on every node.

    python3 -m sparkyard_engine.prewarm [--plan]

A first boot that compiles seven CUTLASS files with a job a core has wedged nodes: here it happens once, on the node
that builds, with MAX_JOBS as the Dockerfile sets it, for FLASHINFER_CUDA_ARCH_LIST. The libraries are put where
FlashInfer looks first (its folder of ready-made modules), so a rank needs no compiler for them. `--plan` only names
them. What needs a GPU to be made (Triton's and TileLang's kernels, tuning) stays in the node's own cache.

Exit codes: 0 done; 1 one of them does not compile, or has no such function in this FlashInfer; 3 no FlashInfer here.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Kernel:
    """One module of FlashInfer 0.7.2: the function that describes it, and what of V4.1 runs it on a GB10."""

    module: str
    function: str
    use: str


KERNELS = (
    Kernel("flashinfer.jit.mla", "gen_sparse_mla_sm120_module", "sparse attention of every step"),
    Kernel(
        "flashinfer.jit.fused_moe", "gen_cutlass_fused_moe_sm120_module", "routed experts (flashinfer_mxfp4)"
    ),
    Kernel("flashinfer.jit.gemm", "gen_gemm_sm120_module_cutlass_mxfp8", "dense layers (flashinfer_cutlass)"),
    Kernel("flashinfer.jit.gemm", "gen_gemm_sm120_module", "dense layers with plain block scales"),
    Kernel("flashinfer.jit.fp8_quantization", "gen_mxfp8_quantization_sm100_module", "activations to MXFP8"),
    Kernel("flashinfer.jit.fp4_quantization", "gen_fp4_quantization_sm121_module", "layout of expert scales"),
    Kernel("flashinfer.jit.mhc", "gen_mhc_module", "hyper-connections"),
    Kernel("flashinfer.jit.sampling", "gen_sampling_module", "sampling"),
    Kernel("flashinfer.jit.norm", "gen_norm_module", "norms"),
    Kernel("flashinfer.jit.rope", "gen_rope_module", "rotations"),
)


def specs() -> list[Any]:
    """FlashInfer's build description of each kernel. Raises LookupError naming every one that is not there."""
    found, missing = [], []
    for kernel in KERNELS:
        try:
            found.append(getattr(importlib.import_module(kernel.module), kernel.function)())
        except (ImportError, AttributeError):
            missing.append(f"{kernel.module}.{kernel.function} ({kernel.use})")
    if missing:
        raise LookupError(f"this FlashInfer has no {', '.join(missing)}")
    return found


def main(arguments: list[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", action="store_true", help="name the modules, compile nothing")
    asked = parser.parse_args(arguments)
    if not os.environ.get("FLASHINFER_CUDA_ARCH_LIST") or not os.environ.get("MAX_JOBS"):
        sys.stderr.write("prewarm: FLASHINFER_CUDA_ARCH_LIST and MAX_JOBS must be set\n")
        return 2
    try:
        import flashinfer.jit.env as places  # type: ignore[import-not-found]
    except ImportError as error:
        sys.stderr.write(f"prewarm: FlashInfer cannot be used here: {error}\n")
        return 3
    try:
        wanted = specs()
    except LookupError as error:
        sys.stderr.write(f"prewarm: {error}\n")
        return 1
    for spec in wanted:
        sys.stdout.write(f"{spec.name}: {len(spec.sources)} sources\n")
        sys.stdout.flush()
        if asked.plan:
            continue
        try:
            spec.build(verbose=False)
        except RuntimeError as error:  # ninja or the compiler
            sys.stderr.write(f"prewarm: {spec.name} does not compile: {error}\n")
            return 1
        ready = Path(places.FLASHINFER_AOT_DIR) / spec.name
        ready.mkdir(parents=True, exist_ok=True)
        shutil.copy2(spec.jit_library_path, ready / f"{spec.name}.so")
    if not asked.plan:
        shutil.rmtree(
            places.FLASHINFER_JIT_DIR, ignore_errors=True
        )  # objects and sources: gigabytes of image
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
