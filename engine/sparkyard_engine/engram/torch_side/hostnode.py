"""Host functions on a CUDA stream: eager they run in stream order, captured they become nodes of the graph.

Source: CUDA driver API, cuLaunchHostFunc. The function must make no CUDA call; ours is plain C++
(engine/native/lookup.hpp).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch


class Lookup(ctypes.Structure):
    """lookup.hpp: Lookup. Pointers as integers; the arrays they name must outlive every launch and every graph."""

    _fields_ = (
        ("reader", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("index", ctypes.c_void_p),
        ("failed", ctypes.c_void_p),
        ("report", ctypes.c_int32),
        ("layer", ctypes.c_int32),
        ("exit_on_fault", ctypes.c_int32),
    )


@cache
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    driver.cuLaunchHostFunc.restype = ctypes.c_int
    return driver


def launch(function: Any, lookup: Lookup, stream: torch.cuda.Stream) -> None:
    """Queues function(&lookup) on the stream. Raises RuntimeError with the driver's code."""
    code = _driver().cuLaunchHostFunc(
        stream.cuda_stream, ctypes.cast(function, ctypes.c_void_p), ctypes.addressof(lookup)
    )
    if code != 0:
        raise RuntimeError(f"cuLaunchHostFunc failed with CUDA error {code}")
