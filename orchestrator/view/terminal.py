"""The console of every verb: whatever is printed through it, the only control sequences are our own."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from orchestrator.model.plain import rows


class Terminal(Console):
    """A `Console` that neutralises texts where they are rendered, so that no caller can forget it."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`. Segments without a control code are texts."""
        for segment in super().render(renderable, options):
            safe = segment.control is not None or segment.text.isprintable() or segment.text == "\n"
            yield segment if safe else Segment(rows(segment.text), segment.style)
