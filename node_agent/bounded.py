"""Reads of file systems whose server may be gone: such a read waits in the kernel, and no signal ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")

_lock = threading.Lock()
_in_work: dict[tuple[str, ...], _Reading] = {}


class HungError(Exception):
    """No answer within the bound."""


@dataclass(frozen=True)
class _Reading:
    """A read in a thread of its own, which nobody has to wait for: not even the end of the program."""

    began: float
    answer: Future[Any]


def _start(work: Callable[[], object]) -> _Reading:
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:  # raised again where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return _Reading(time.monotonic(), answer)


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
        if reading is None or reading.answer.done():
            reading = _in_work[key] = _start(work)
    wait([reading.answer], max(0.0, reading.began + timeout_s - time.monotonic()))
    if not reading.answer.done():
        raise HungError
    with _lock:
        if _in_work.get(key) is reading:
            del _in_work[key]
    found: Value = reading.answer.result()
    return found
