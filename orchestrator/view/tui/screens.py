"""The screens over the dashboard: help, one node, a long text, the events, a question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, Static

from orchestrator.model.plain import clean

HELP = """\
 ↑ ↓  j k     choose a node            enter   the node in detail
 0 … 6  tab   choose a panel           f       findings, in full
 e            events, with a filter    l       engine log of the node
 d            run the doctor           S       stop, after the plan is shown
 R            restart, likewise        q       leave

 In a replay:  space stop, go on   ← → 10 s back, forward   < > speed

 MEM GiB  memory that is available     FLOOR+  GiB above the guard's floor
 NET      all rails, both directions   FOR     time in this phase
 LOW GiB  lowest available memory since the rank began
 SKEW     Engram reads against the median of all ranks
 –        not known: a node that does not answer has no values

 ● serving   ▲ degraded   ◔ booting   ✖ down   ■ stopped   ? unknown
"""

Lines = Callable[[], Awaitable[list[str]]]


class TextScreen(Screen[None]):
    """A text to scroll in. What takes time is fetched after the screen is there."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "back")]

    def __init__(self, title: str, text: Text | None = None, lines: Lines | None = None) -> None:
        super().__init__()
        self._heading, self._text, self._lines = title, text, lines

    def compose(self) -> ComposeResult:
        """See `Screen`."""
        scroll = VerticalScroll(Static(self._text or Text("…"), id="text"), classes="box")
        scroll.border_title = self._heading
        yield scroll
        yield Footer()

    def on_mount(self) -> None:
        """Fetch."""
        self.query_one(VerticalScroll).focus()
        if self._lines is not None:
            self.run_worker(self._fetch(self._lines), exclusive=True)

    async def _fetch(self, lines: Lines) -> None:
        found = await lines()
        self.query_one("#text", Static).update(Text("\n".join(clean(line) for line in found) or "nothing"))
        self.query_one(VerticalScroll).scroll_end(animate=False)


class EventScreen(Screen[None]):
    """All events that are kept, and a filter."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]

    def __init__(self, draw: Callable[[str], Text]) -> None:
        super().__init__()
        self._draw = draw

    def compose(self) -> ComposeResult:
        """See `Screen`."""
        yield Input(placeholder="part of a line, a node, error or warning", id="wanted")
        scroll = VerticalScroll(Static(self._draw(""), id="text"), classes="box")
        scroll.border_title = "events"
        yield scroll
        yield Footer()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The filter acts as it is typed."""
        self.query_one("#text", Static).update(self._draw(event.value))

    def on_mount(self) -> None:
        """The newest is at the end."""
        self.query_one("#wanted", Input).focus()
        self.query_one(VerticalScroll).scroll_end(animate=False)


class Question(ModalScreen[bool]):
    """Shows what would be done and asks. Only `y` is yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "do it"),
        Binding("n,escape,q", "answer(False)", "leave it"),
    ]

    def __init__(self, title: str, plan: Lines) -> None:
        super().__init__()
        self._heading, self._plan = title, plan
        self._shown = False

    def compose(self) -> ComposeResult:
        """See `Screen`."""
        box = Vertical(VerticalScroll(Static("planning …", id="text")), Static("", id="ask"), classes="box")
        box.border_title = self._heading
        yield box

    def on_mount(self) -> None:
        """Plan first: nobody agrees to what has not been shown."""
        self.run_worker(self._fetch(), exclusive=True)

    async def _fetch(self) -> None:
        lines = await self._plan()
        self.query_one("#text", Static).update(Text("\n".join(clean(line) for line in lines)))
        self.query_one("#ask", Static).update(Text("y  do it    n  leave it", style="bold"))
        self._shown = True

    def action_answer(self, yes: bool) -> None:
        """The answer counts once the plan is on the screen."""
        if not yes or self._shown:
            self.dismiss(yes)
