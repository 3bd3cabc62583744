"""A dialog with a list to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from edgespec.text.printable import one_line, printable


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of the list: `key` is the result if it is chosen, `about` a second line."""

    key: str
    name: str
    about: str = ""


class ChoiceScreen(ModalScreen[str | None]):
    """Shows a text and below it the choices; the result is the key of the chosen one, or None.

    `current` is highlighted, else the first choice; with `is_error` nothing.
    """

    DEFAULT_CSS = """
    ChoiceScreen {
        align: center middle;
        & > Vertical {
            width: 76;
            max-width: 100%;
            height: auto;
            max-height: 100%;
            border: round $border;
            border-title-color: $foreground;
            background: $background;
            padding: 0 1;
        }
        &.-error > Vertical { border: round $error; }
        & Static { height: auto; max-height: 10; padding: 0 0 1 0; }
        & OptionList { height: auto; max-height: 20; }
    }
    """
    BINDINGS = [Binding("escape", "dismiss(None)", "Close", id="choice.close")]  # noqa: RUF012

    def __init__(
        self, title: str, text: str, choices: Sequence[Choice], current: str = "", *, is_error: bool = False
    ) -> None:
        super().__init__(classes="-error" if is_error else None)
        self._title, self._text, self._choices, self._current = title, text, choices, current
        self._is_error = is_error

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            if self._text:
                yield Static(Content(printable(self._text).strip()))
            options = OptionList(*map(self._option, self._choices), compact=True)
            keys = [choice.key for choice in self._choices]
            # An error opens while the user may be typing: Enter must not choose anything yet.
            options.highlighted = keys.index(self._current) if self._current in keys else None if self._is_error else 0
            yield options
        yield Footer(show_command_palette=False, compact=True)

    def _option(self, choice: Choice) -> Option:
        mark = "• " if self._current and choice.key == self._current else ""
        below = (f"\n  {one_line(choice.about)}", "dim") if choice.about else ""
        return Option(Content.assemble(mark, (choice.name, "bold" if below else ""), below))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index].key)
