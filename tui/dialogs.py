"""Dialogs above the chat: a list to choose from, and a question for a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen, ScreenResultType
from textual.suggester import SuggestFromList
from textual.widgets import Footer
from textual.widgets.option_list import Option

from edgespec.text.printable import one_line, printable
from edgespec.tui.plain import Input, OptionList, Prose, Vertical
from edgespec.tui.screens import BaseScreen


class Dialog(ModalScreen[ScreenResultType | None], BaseScreen[ScreenResultType | None]):
    """A screen above the chat, whose keys have no effect meanwhile. The result is None if the user closes it."""

    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "dismiss(None)", "Close", id="dialog.close"),
        Binding("ctrl+q", "app.call('bye')", "Quit", id="dialog.quit"),
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of the list: `key` is the result if it is chosen, `about` a second line."""

    key: str
    name: str
    about: str = ""


class ChoiceScreen(Dialog[str]):
    """Shows a text and below it the choices; the result is the key of the chosen one.

    `current` is highlighted, else the first choice; with `is_error` nothing. A character that the
    user types closes the screen, and is given to `typed`.
    """

    def __init__(
        self,
        title: str,
        text: str,
        choices: Sequence[Choice],
        current: str = "",
        *,
        is_error: bool = False,
        typed: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(classes="-error" if is_error else None)
        self._title, self._text, self._choices, self._current = title, text, choices, current
        self._is_error, self._typed = is_error, typed

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            if self._text:
                yield Prose(Content(printable(self._text).strip()))
            options = OptionList(*map(self._option, self._choices), compact=True)
            keys = [choice.key for choice in self._choices]
            # An error opens while the user may be typing: Enter must not choose anything yet.
            options.highlighted = keys.index(self._current) if self._current in keys else None if self._is_error else 0
            yield options
        yield Footer(show_command_palette=False, compact=True)

    def on_key(self, event: Key) -> None:
        if self._typed is not None and event.is_printable and event.character:
            event.stop()
            self.dismiss(None)
            self._typed(event.character)

    def _option(self, choice: Choice) -> Option:
        mark = "• " if self._current and choice.key == self._current else ""
        below = (f"\n  {one_line(choice.about)}", "dim") if choice.about else ""
        return Option(Content.assemble(mark, (choice.name, "bold" if below else ""), below))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index].key)


class TextScreen(Dialog[str]):
    """Asks for a line of text, initially `before`; `known` texts complete what is typed.

    The result is None if the text is unchanged.
    """

    def __init__(self, title: str, before: str, known: Sequence[str] = ()) -> None:
        super().__init__()
        self._title, self._before, self._known = title, one_line(before), known

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = self._title
            suggester = SuggestFromList(self._known, case_sensitive=False) if self._known else None
            text = Input(self._before, compact=True, suggester=suggester)
            text.cursor_blink = False
            yield text
        yield Footer(show_command_palette=False, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = one_line(event.value)
        self.dismiss(text if text != self._before else None)
