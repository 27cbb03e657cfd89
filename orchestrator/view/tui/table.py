"""Columns of text that fit a width: the least wanted columns go first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from orchestrator.model.plain import clean

GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """`wanted`: 0 is always shown, higher numbers go earlier. `right`: numbers."""

    title: str
    width: int
    wanted: int = 0
    right: bool = False


Cell = str | Text


def fitting(columns: Sequence[Column], width: int) -> list[int]:
    """Indices of the columns that fit into `width`."""
    kept = list(range(len(columns)))
    while len(kept) > 1 and _total(columns, kept) > width:
        last = max(kept, key=lambda index: (columns[index].wanted, index))
        if columns[last].wanted == 0:
            break
        kept.remove(last)
    return kept


def _total(columns: Sequence[Column], kept: Sequence[int]) -> int:
    return sum(columns[index].width + GAP for index in kept) - GAP


def draw(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, selected: int | None = None
) -> Text:
    """A table as one text: a dim head, then the rows; with `selected`, that one is marked and bold."""
    mark = "" if selected is None else "  "
    kept = fitting(columns, width - len(mark))
    titles = "  ".join(_fit(Text(columns[index].title), columns[index]).plain for index in kept)
    head = Text(mark + titles, style="dim")
    found = [head]
    for number, row in enumerate(rows):
        line = Text("  ").join(
            _fit(cell if isinstance(cell, Text) else Text(clean(cell)), columns[index])
            for index, cell in ((index, row[index]) for index in kept)
        )
        if number == selected:
            line = Text("▸ ") + line
            line.stylize("bold")
        elif mark:
            line = Text(mark) + line
        line.truncate(width)
        found.append(line)
    return Text("\n").join(found)


def _fit(cell: Text, column: Column) -> Text:
    if cell.cell_len > column.width:
        cut = cell.copy()
        cut.truncate(column.width, overflow="ellipsis")
        return cut
    space = " " * (column.width - cell.cell_len)
    return Text(space) + cell if column.right else cell + Text(space)


def clipped(text: str, width: int) -> str:
    """`text` in at most `width` cells, with an ellipsis where it is cut; without what a terminal would obey."""
    text = clean(text)
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"
