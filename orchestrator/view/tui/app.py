"""`top`: draws the state once a second, and asks nobody for anything unless a key says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Footer, Static

from orchestrator.view.state import State
from orchestrator.view.tui.detail import node_detail
from orchestrator.view.tui.heading import headline
from orchestrator.view.tui.links import links
from orchestrator.view.tui.news import events, findings
from orchestrator.view.tui.nodes import nodes
from orchestrator.view.tui.overview import overview
from orchestrator.view.tui.ranks import rank_table
from orchestrator.view.tui.requests import engram, requests
from orchestrator.view.tui.screens import HELP, EventScreen, Question, TextScreen
from orchestrator.view.tui.source import Controls, Seekable, Source, Verb
from orchestrator.view.tui.table import clipped

REFRESH_S = 1.0
"""Samples come every 2 s; a faster screen would only cost."""
NODE_ROWS_MAX = 16
SEEK_S = 10.0

Draw = Callable[[State, float, int, int], Text]
PANELS: tuple[tuple[str, Draw], ...] = (
    ("ranks", rank_table),
    ("links", links),
    ("requests", requests),
    ("engram", engram),
    ("findings", findings),
)
NAMES = (*(name for name, _ in PANELS), "events")
OVERVIEW = "overview"
"""What a screen without room for all panels shows first."""
CHOICES = (OVERVIEW, *NAMES)


class Top(App[None]):
    """The dashboard over one `Source`; `controls` None: it can only be looked at."""

    CSS_PATH = "top.tcss"
    TITLE = "sparkyard"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("up,k", "choose(-1)", "node", show=False),
        Binding("down,j", "choose(1)", "node", show=False),
        Binding("enter", "detail", "detail"),
        Binding("tab", "panel(1)", show=False, priority=True),
        Binding("shift+tab", "panel(-1)", show=False, priority=True),
        *(Binding(str(number), f"show('{name}')", show=False) for number, name in enumerate(CHOICES)),
        Binding("f", "findings", "findings"),
        Binding("e", "events", "events"),
        Binding("l", "logs", "logs"),
        Binding("d", "doctor", "doctor"),
        Binding("S", "order('stop')", "stop", key_display="S"),
        Binding("R", "order('restart')", "restart", key_display="R"),
        Binding("space", "pause", show=False),
        Binding("left", f"seek({-SEEK_S})", show=False),
        Binding("right", f"seek({SEEK_S})", show=False),
        Binding("less_than_sign", "speed(0.5)", show=False),
        Binding("greater_than_sign", "speed(2.0)", show=False),
        Binding("q,ctrl+c", "quit", "leave"),
    ]

    def __init__(
        self,
        source: Source,
        controls: Controls | None = None,
        *,
        zone: tzinfo = UTC,
        refresh_s: float | None = REFRESH_S,
    ) -> None:
        """`zone`: of the clock in the event log. `refresh_s` None: drawn only when `refresh_all` is called."""
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-broad")]
        self.VERTICAL_BREAKPOINTS = [(0, "-low"), (34, "-high")]
        self.animation_level = "none"
        self._source, self._controls = source, controls
        self._zone, self._refresh_s = zone, refresh_s
        self._chosen, self._panel = 0, OVERVIEW
        self._drawn: dict[str, Text] = {}

    def compose(self) -> ComposeResult:
        """See `App`."""
        yield Static(id="headline")
        yield Static(id="nodes", classes="panel")
        with Container(id="panels"):
            for name in CHOICES:
                yield Static(id=name, classes="panel choice")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Start the clock."""
        self.query_one("#nodes").border_title = "nodes"
        self.action_show(self._panel)
        if self._refresh_s is not None:
            self.set_interval(self._refresh_s, self.refresh_all)
        self.call_after_refresh(self.refresh_all)

    def on_resize(self) -> None:
        """Everything is cut to the new width."""
        self.call_after_refresh(self.refresh_all)

    def refresh_all(self) -> None:
        """Draw what is shown and has changed; under another screen nothing is."""
        if len(self.screen_stack) > 1:
            return
        state, now_unix_s = self._source.look()
        self._chosen = max(0, min(self._chosen, len(state.nodes) - 1))
        width = self.size.width
        self._name_panels()
        self._put("headline", headline(state, now_unix_s, width - 2 - len(self._source.about())))
        table = self.query_one("#nodes", Static)
        table.styles.height = min(NODE_ROWS_MAX, len(state.nodes) + 1) + 2
        self._put("nodes", nodes(state, now_unix_s, self._inner(table), self._chosen))
        table.border_subtitle = self._source.about()
        for name, draw in ((OVERVIEW, overview), *PANELS):
            panel = self.query_one(f"#{name}", Static)
            if panel.display and panel.size.height:
                self._put(name, draw(state, now_unix_s, panel.size.width, panel.size.height))
        log = self.query_one("#events", Static)
        if log.display and log.size.height:
            self._put("events", events(state, log.size.width, log.size.height, "", self._zone))

    def _name_panels(self) -> None:
        """On a small screen the one panel's title is the list of all."""
        small = (
            self.query_one(f"#{OVERVIEW}").display or sum(self.query_one(f"#{n}").display for n in NAMES) == 1
        )
        for number, name in enumerate(CHOICES):
            title = f"{number} {name}"
            if small:
                others = [f"{place} {each}" for place, each in enumerate(CHOICES)]
                title = "  ".join(f"[b]{text}[/b]" if text == title else text for text in others)
            self.query_one(f"#{name}").border_title = title

    def _inner(self, panel: Static) -> int:
        return panel.size.width or self.size.width - 4

    def _put(self, name: str, text: Text) -> None:
        if self._drawn.get(name) != text:
            self._drawn[name] = text
            self.query_one(f"#{name}", Static).update(text)

    def action_show(self, name: str) -> None:
        """The panel that a small screen shows; on a large one all are there."""
        self._panel = name
        for each in CHOICES:
            self.query_one(f"#{each}").set_class(each == name, "-chosen")
        self._drawn.clear()
        self.call_after_refresh(self.refresh_all)

    def action_panel(self, step: int) -> None:
        """The next one."""
        if len(self.screen_stack) > 1:
            self.screen.focus_next()
            return
        self.action_show(CHOICES[(CHOICES.index(self._panel) + step) % len(CHOICES)])

    def action_choose(self, step: int) -> None:
        """The next node."""
        self._chosen += step
        self.refresh_all()

    def _node(self) -> str | None:
        names = list(self._source.look()[0].nodes)
        return names[self._chosen] if names else None

    def action_help(self) -> None:
        """What the keys do."""
        self.push_screen(TextScreen("help", Text(HELP)))

    def action_detail(self) -> None:
        """The chosen node."""
        name = self._node()
        if name is not None:
            state, now_unix_s = self._source.look()
            text = node_detail(state, state.nodes[name], now_unix_s, self.size.width - 4, self._zone)
            self.push_screen(TextScreen(name, text))

    def action_findings(self) -> None:
        """All of them, with remedies."""
        state, now_unix_s = self._source.look()
        text = findings(state, now_unix_s, self.size.width - 4, 10_000)
        self.push_screen(TextScreen("findings", text))

    def action_events(self) -> None:
        """All that are kept."""

        def draw(wanted: str) -> Text:
            return events(self._source.look()[0], self.size.width - 4, 10_000, wanted, self._zone)

        self.push_screen(EventScreen(draw))

    def action_logs(self) -> None:
        """Of the chosen node."""
        name, controls = self._node(), self._controls
        if controls is None or name is None:
            self._only_looking()
            return
        self.push_screen(TextScreen(f"engine log of {name}", lines=lambda: controls.logs(name)))

    def action_doctor(self) -> None:
        """All checks."""
        if self._controls is None:
            self._only_looking()
            return
        self.push_screen(TextScreen("doctor", lines=self._controls.doctor))

    def action_order(self, verb: Verb) -> None:
        """Plan, ask, do."""
        controls = self._controls
        if controls is None:
            self._only_looking()
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.push_screen(TextScreen(verb, lines=lambda: controls.perform(verb)))

        self.push_screen(Question(f"{verb}: the plan", lambda: controls.plan(verb)), answered)

    def _only_looking(self) -> None:
        self.notify(clipped(f"{self._source.about()}: only to be looked at", 60), timeout=3)

    def _seekable(self) -> Seekable | None:
        source: Any = self._source
        return source if hasattr(source, "seek") else None

    def action_pause(self) -> None:
        """In a replay."""
        if (source := self._seekable()) is not None:
            source.pause()
            self.refresh_all()

    def action_seek(self, seconds: float) -> None:
        """In a replay."""
        if (source := self._seekable()) is not None:
            source.seek(seconds)
            self.refresh_all()

    def action_speed(self, factor: float) -> None:
        """In a replay."""
        if (source := self._seekable()) is not None:
            source.faster(factor)
            self.refresh_all()
