"""The CUDA driver by ctypes: enough to load the probes' kernels, run them and time them. Nothing to install.

Runs in a process of its own (`python -c … main`), so that a driver that hangs is killed with it and all GPU memory
goes back when it ends. Speaks JSON lines on standard output.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

from node_agent.probes.kernels import GEMV_WARPS_PER_BLOCK, MMA_FLOPS, MMAS_PER_TURN, PTX

BURN_THREADS = 256
BURN_BLOCKS_PER_SM = 4
BURN_TURNS = 4096
LAUNCH_AHEAD = (
    4  # launches in the queue: enough to hide the launch, few enough to end soon after the deadline
)
ROW_BYTES = 16384  # 8192 halves a row, as in the projections of a decode step
MATRIX_BYTES = 512 * 1024**2  # far larger than any L2 cache
GEMV_VALUE = 0x1400  # the half 2^-10: a row of 8192 sums to 8 exactly
GEMV_ROW_SUM = 8.0
GEMV_BATCH = 8
SECOND = 1.0
MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76


class CudaError(Exception):
    """A call of the driver failed; the text names call and reason."""


class Driver:
    """The driver's library, with one device and its primary context. Use as a context manager."""

    def __init__(self, index: int = 0) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"libcuda.so.1 cannot be loaded: {error}") from error
        self._device = ctypes.c_int()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(index))
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxSetCurrent", context)
        self._module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(PTX.encode()))

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.cuDevicePrimaryCtxRelease_v2(self._device)

    def call(self, name: str, *arguments: Any) -> None:
        """One call. CudaError when the driver refuses it."""
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            reason = text.value.decode() if text.value else "unknown"
            raise CudaError(f"{name}: {reason} ({status})")

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self._device)
        return value.value

    def function(self, name: str) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(found), self._module, ctypes.c_char_p(name.encode()))
        return found

    def allocate(self, size_bytes: int) -> ctypes.c_uint64:
        place = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size_bytes))
        return place

    def launch(self, function: ctypes.c_void_p, blocks: int, threads: int, *arguments: Any) -> None:
        """Put one kernel into the default stream."""
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p) for argument in arguments)
        )
        shape = [ctypes.c_uint(number) for number in (blocks, 1, 1, threads, 1, 1)]
        self.call("cuLaunchKernel", function, *shape, ctypes.c_uint(0), None, pointers, None)

    def wait(self) -> None:
        self.call("cuCtxSynchronize")


def burn(driver: Driver, seconds: float) -> float:
    """Tensor-core load for so many seconds; TFLOPS (halves in, floats out) that were reached."""
    blocks = driver.attribute(MULTIPROCESSORS) * BURN_BLOCKS_PER_SM
    out = driver.allocate(blocks * BURN_THREADS * 4)
    function = driver.function("burn")
    turns = ctypes.c_uint(BURN_TURNS)
    warps = blocks * BURN_THREADS // 32
    driver.launch(function, blocks, BURN_THREADS, out, turns)
    driver.wait()
    launches = 0
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        for _ in range(LAUNCH_AHEAD):
            driver.launch(function, blocks, BURN_THREADS, out, turns)
        driver.wait()
        launches += LAUNCH_AHEAD
    took_s = time.monotonic() - started
    return launches * warps * BURN_TURNS * MMAS_PER_TURN * MMA_FLOPS / took_s / 1e12


def gemv(driver: Driver, seconds: float, report: Any) -> dict[str, Any]:
    """Matrix-vector products for so many seconds: GB/s of each second, and of a plain copy for comparison.

    CudaError when a sum is wrong: then no rate means anything.
    """
    rows = MATRIX_BYTES // ROW_BYTES
    matrix, other, out = (
        driver.allocate(MATRIX_BYTES),
        driver.allocate(MATRIX_BYTES),
        driver.allocate(rows * 4),
    )
    driver.call("cuMemsetD16_v2", matrix, ctypes.c_ushort(GEMV_VALUE), ctypes.c_size_t(MATRIX_BYTES // 2))
    function = driver.function("gemv")
    threads = GEMV_WARPS_PER_BLOCK * 32
    blocks = -(-rows // GEMV_WARPS_PER_BLOCK)
    arguments = (matrix, out, ctypes.c_uint(rows), ctypes.c_uint(ROW_BYTES))
    driver.launch(function, blocks, threads, *arguments)
    driver.wait()
    sums = (ctypes.c_float * rows)()
    driver.call("cuMemcpyDtoH_v2", sums, out, ctypes.c_size_t(rows * 4))
    if any(abs(found - GEMV_ROW_SUM) > 1e-3 for found in sums):
        raise CudaError(
            f"gemv: a row sums to {max(sums)} instead of {GEMV_ROW_SUM}: this GPU computes wrongly"
        )
    rates: list[float] = []
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        begin, count = time.monotonic(), 0
        while time.monotonic() - begin < SECOND:
            for _ in range(GEMV_BATCH):
                driver.launch(function, blocks, threads, *arguments)
            driver.wait()
            count += GEMV_BATCH
        rates.append(round(count * MATRIX_BYTES / (time.monotonic() - begin) / 1e9, 1))
        report({"second": len(rates), "gigabytes_per_s": rates[-1]})
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < SECOND:
        driver.call("cuMemcpyDtoD_v2", other, matrix, ctypes.c_size_t(MATRIX_BYTES))
        driver.wait()
        count += 1
    copy = 2 * count * MATRIX_BYTES / (time.monotonic() - begin) / 1e9
    return {"gigabytes_per_s": rates, "copy_gigabytes_per_s": round(copy, 1)}


def main(kind: str, seconds: float) -> int:
    """`burn` or `gemv`. The last line holds the result or the error."""

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), flush=True)

    try:
        with Driver() as driver:
            capability = f"{driver.attribute(CAPABILITY_MAJOR)}.{driver.attribute(CAPABILITY_MINOR)}"
            say({"progress": {"capability": capability}})
            if kind == "burn":
                say({"result": {"tflops": round(burn(driver, seconds), 1)}})
            else:
                say({"result": gemv(driver, seconds, lambda seen: say({"progress": seen}))})
    except CudaError as error:
        say({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
