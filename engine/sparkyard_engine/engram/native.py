"""The native half of the store. Not there (no compiler): everything runs on its Python twin, slower."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparkyard_engine.engram.format import PageSeal

U8 = NDArray[np.uint8]


class Library(Protocol):
    """What the native library does for packing."""

    def lay_out(self, pages: U8, weight: U8, scale: U8, seal: PageSeal, first_page: int) -> None:
        """Interleaves rows into pages and seals them."""

    def valid(self, pages: U8, seal: PageSeal, first_page: int) -> NDArray[np.bool_]:
        """Whether each page is sound."""


def library() -> Library | None:
    """The loaded library, or None."""
    return None
