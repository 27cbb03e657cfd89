"""Reads the rows of the next prefill chunk into the reader's cache while the device works on this one."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram.errors import EngramError
from sparkyard_engine.engram.hashing import SCALE_BYTES, WEIGHT_BYTES
from sparkyard_engine.engram.reader import Reader

# Rows per turn: the reader serves one batch at a time, and a decode step must not wait long for its own (5 ms at
# 100,000
# reads a second).
TURN_ROWS: Final = 512


class LookAhead:
    """One worker. The rows go through the same proof as any others, and a failed read here is left to the real lookup,
    which will meet it again and say so. Needs a reader whose cache holds a chunk (`cache_bytes` ≥ rows × 272)."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="look-ahead")
        self._stop = threading.Event()
        self._weight = np.empty((TURN_ROWS, WEIGHT_BYTES), dtype=np.uint8)
        self._scale = np.empty((TURN_ROWS, SCALE_BYTES), dtype=np.uint8)
        self._index = np.empty(TURN_ROWS, dtype=np.int32)

    def begin(self, ids: NDArray[np.int64]) -> Future[int]:
        """Starts on these ids and gives up on earlier ones; the result is how many rows were read."""
        self._stop.set()
        self._stop = stop = threading.Event()
        distinct = np.unique(ids)
        return self._pool.submit(self._read, distinct[self._reader.slice.owned(distinct)], stop)

    def _read(self, ids: NDArray[np.int64], stop: threading.Event) -> int:
        done = 0
        for first in range(0, len(ids), TURN_ROWS):
            if stop.is_set():
                break
            part = ids[first : first + TURN_ROWS]
            try:
                self._reader.read_distinct(part, self._weight, self._scale, self._index[: len(part)])
            except EngramError:
                break
            done += len(part)
        return done

    def close(self) -> None:
        """Waits for the turn under way."""
        self._stop.set()
        self._pool.shutdown()
