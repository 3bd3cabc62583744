"""The layout of the model picker, and the keys that lead through it."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from edgespec.tui.choices import Choices


@dataclass(frozen=True, slots=True)
class Picked:
    """The choice, as in `LoadSettings`; `draft` is None for the model's default draft, or "none". It may have to be
    downloaded, and `is_confirmed` if that is large."""

    model: str
    draft: str | None
    is_confirmed: bool = False


class Filter(Input):
    """An input that the key to the right leaves at its end."""

    BINDINGS = [Binding("enter", "submit", "Choose")]  # noqa: RUF012

    def action_cursor_right(self, select: bool = False) -> None:
        if self.cursor_position == len(self.value) and not select:
            self.screen.query_one("#picker-drafts").focus()
        else:
            super().action_cursor_right(select)


class Models(Choices):
    """The models. Enter takes the highlighted one, a click only highlights it."""

    BINDINGS = [Binding("enter", "screen.take", "Choose")]  # noqa: RUF012


class PickerLayout(ModalScreen[Picked | None]):
    """Two lists beside each other, or one above the other, with a filter above the first; `text` is in it at first."""

    DEFAULT_CSS = """
    PickerLayout {
        align: center middle;
        & > #picker { background: $surface; max-width: 120; max-height: 40; }
        & #picker-lists { height: 1fr; layout: vertical; }
        & Vertical { height: 1fr; }
        & #picker-title { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        & Input { height: 1; border: none; padding: 0 1; background: $surface; }
        & Input:focus { border: none; background: $primary 15%; }
        & #picker-told { height: auto; min-height: 3; max-height: 5; scrollbar-size-vertical: 1; }
        & #picker-said { padding: 0 1; color: $text-muted; }
        & .-side:focus-within > #picker-models > .option-list--option-highlighted {
            background: $primary 35%; color: $foreground; text-style: bold;
        }
        & #picker-said.-error { color: $text-error; background: $error 20%; text-style: bold; }
        &.-wide > #picker { border: round $primary; width: 94%; height: 90%; }
        &.-wide #picker-lists { layout: horizontal; }
        &.-wide #picker-told { margin-top: 1; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-wide")]  # noqa: RUF012 - Textual declares it so
    BINDINGS = [  # noqa: RUF012
        Binding("escape", "leave", "Close", id="picker.leave"),
        Binding("slash", "go_to('filter')", "Filter", id="picker.filter"),
        Binding("p", "go_to('path')", "Path", id="picker.path"),
        Binding("x", "stop", "Stop download", id="picker.stop"),
        Binding("left", "go_to('filter')", show=False, id="picker.models"),
        *(
            Binding(key, f"move('{action}')", show=False)
            for key, action in (
                ("up", "cursor_up"),
                ("down", "cursor_down"),
                ("pageup", "page_up"),
                ("pagedown", "page_down"),
            )
        ),
        Binding("right", "go_to('drafts')", show=False, id="picker.drafts"),
    ]
    AUTO_FOCUS = "#picker-filter"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(id="picker"):
            with Container(id="picker-lists"):
                with Vertical(classes="-side"):
                    yield Filter(self._text, id="picker-filter")
                    yield Models(id="picker-models")
                with Vertical():
                    yield Static(id="picker-title", markup=False)
                    yield Choices(id="picker-drafts")
            with VerticalScroll(id="picker-told"):
                yield Static(id="picker-said", markup=False)
            yield Input(placeholder="Path or name of another model", id="picker-path")
            yield Footer(show_command_palette=False, compact=True)

    @property
    def filter(self) -> Filter:
        return self.query_one("#picker-filter", Filter)

    @property
    def path(self) -> Input:
        return self.query_one("#picker-path", Input)

    @property
    def models(self) -> Choices:
        return self.query_one("#picker-models", Choices)

    @property
    def drafts(self) -> Choices:
        return self.query_one("#picker-drafts", Choices)

    def action_go_to(self, name: str) -> None:
        self.query_one(f"#picker-{name}").focus()

    def action_move(self, how: str) -> None:
        """Move through the models while a filter is typed."""
        if self.filter.has_focus:
            getattr(self.models, f"action_{how}")()

    def on_key(self, event: events.Key) -> None:
        """Text typed in a list goes to the filter."""
        bound = self.active_bindings.get(event.key)
        if isinstance(self.focused, Choices) and event.is_printable and event.character and bound is None:
            self.filter.focus()
            self.filter.insert_text_at_cursor(event.character)
            event.stop()
