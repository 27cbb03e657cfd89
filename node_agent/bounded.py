"""Reads of file systems whose server may be gone: such a read waits in the kernel, and no signal ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

_lock = threading.Lock()
_in_work: dict[tuple[str, ...], _Reading] = {}


class HungError(Exception):
    """No answer within the bound."""


class _Reading:
    """A read in a thread of its own, which nobody has to wait for."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.began = time.monotonic()
        self.value: object = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            self.value = work()
        except Exception as error:  # raised again where it is waited for
            self.error = error


def bounded(key: tuple[str, ...], work: Callable[[], Value], timeout_s: float) -> Value:
    """``work()``, or what it raises. Who asks for the same ``key`` while it is in work waits for the same read.

    Args:
        key: what is read, from which mount. While an earlier read of it hangs, no other one is sent after it.
        timeout_s: counts from the beginning of the read: one that has hung for so long is told at once.

    Raises:
        HungError: no answer yet. The read stays behind until the kernel lets go of it.
    """
    with _lock:
        reading = _in_work.get(key)
        if reading is None or not reading.thread.is_alive():
            reading = _in_work[key] = _Reading(work)
    reading.thread.join(max(0.0, reading.began + timeout_s - time.monotonic()))
    if reading.thread.is_alive():
        raise HungError
    with _lock:
        if _in_work.get(key) is reading:
            del _in_work[key]
    if reading.error is not None:
        raise reading.error
    return reading.value  # type: ignore[return-value]  # what ``work`` gave
