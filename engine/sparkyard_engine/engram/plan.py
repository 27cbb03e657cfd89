"""What a pack will write, decided from headers alone: no row is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sparkyard_engine.engram.errors import SpaceError
from sparkyard_engine.engram.format import EXTENT_PAGES, ROWS_PER_PAGE, Header, Identity
from sparkyard_engine.engram.manifest import layer_file_name
from sparkyard_engine.engram.ownership import Ownership, check_rank, slices
from sparkyard_engine.engram.source import Checkpoint

EXTENT_ROWS: Final = EXTENT_PAGES * ROWS_PER_PAGE
MANIFEST_ROOM_BYTES: Final = 16 << 20  # manifest, status and file-system metadata beside the layer files


@dataclass(frozen=True, slots=True)
class Extent:
    """One unit of work: local rows [first_row, first_row + rows) of a layer, pages from first_page on
    (1-based).
    """

    layer: int
    number: int
    first_row: int
    rows: int
    first_page: int
    pages: int


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A store that does not exist yet."""

    identity: Identity
    headers: tuple[Header, ...]

    @property
    def file_bytes(self) -> int:
        """Size of all layer files together."""
        return sum(header.file_bytes for header in self.headers)

    @property
    def row_bytes(self) -> int:
        """The same without page and header overhead."""
        return sum(header.rows for header in self.headers) * 264


def plan_store(checkpoint: Checkpoint, revision: str, tp: int, rank: int, ownership: Ownership) -> StorePlan:
    """Raises ConfigError for a rank outside tp."""
    check_rank(tp, rank)
    identity = Identity(revision, checkpoint.index_sha256, tp, rank, ownership)
    headers = tuple(
        Header(
            identity,
            table.layer,
            table.rows,
            slices(ownership, checkpoint.layout.bounds(table.layer), tp)[rank].ranges,
            table.weight,
            table.scale,
        )
        for table in checkpoint.tables
    )
    return StorePlan(identity, headers)


def extents(header: Header) -> list[Extent]:
    """The extents of one layer file, in order."""
    out = []
    for number, first_row in enumerate(range(0, header.rows, EXTENT_ROWS)):
        rows = min(EXTENT_ROWS, header.rows - first_row)
        pages = -(-rows // ROWS_PER_PAGE)
        out.append(Extent(header.layer, number, first_row, rows, 1 + number * EXTENT_PAGES, pages))
    return out


def partial_path(output: Path, layer: int) -> Path:
    """Where a layer is written before it is whole."""
    return output / (layer_file_name(layer) + ".partial")


def check_space(plan: StorePlan, output: Path) -> None:
    """Raises SpaceError. Blocks that an interrupted pack already holds count as there."""
    held = 0
    for header in plan.headers:
        for path in (partial_path(output, header.layer), output / layer_file_name(header.layer)):
            if path.exists():
                held += min(path.stat().st_blocks * 512, header.file_bytes)
    need = plan.file_bytes - held + MANIFEST_ROOM_BYTES
    stat = os.statvfs(output)
    free = stat.f_bavail * stat.f_frsize
    if free < need:
        raise SpaceError(
            f"{output}: {need / 2**30:.2f} GiB are needed, {free / 2**30:.2f} GiB are free: "
            f"{(need - free) / 2**30:.2f} GiB ({need - free} bytes) short; free some or choose another drive"
        )
