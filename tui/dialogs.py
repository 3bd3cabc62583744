"""Screens above the chat: a list to choose from, a question for a text, and the command palette."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.command import CommandInput, CommandList, CommandPalette, SearchIcon
from textual.content import Content
from textual.css.query import NoMatches
from textual.errors import NoWidget
from textual.events import Click, Key
from textual.screen import ModalScreen, ScreenResultType
from textual.suggester import SuggestFromList
from textual.widgets import Footer, LoadingIndicator
from textual.widgets.option_list import Option

from edgespec.text.printable import one_line
from edgespec.tui.lines import Prose
from edgespec.tui.plain import ChangingList, Horizontal, Input, OptionList, Vertical
from edgespec.tui.screens import BaseScreen, ClosedOnce


class Dialog(ModalScreen[ScreenResultType | None], BaseScreen[ScreenResultType | None]):
    """A screen above the chat, whose keys have no effect meanwhile. The result is None if the user closes it."""

    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "dismiss(None)", "Close", id="dialog.close"),
        Binding("ctrl+q", "app.call('bye')", "Quit", id="dialog.quit"),
    ]


@dataclass(frozen=True, slots=True)
class ListEntry:
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
        choices: Sequence[ListEntry],
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
                yield Prose(self._text.strip())
            options = OptionList(*map(self._option, self._choices), compact=True)
            keys = [choice.key for choice in self._choices]
            # An error opens while the user may be typing: Enter must not choose anything yet.
            is_known = bool(self._current) and self._current in keys
            options.highlighted = keys.index(self._current) if is_known else None if self._is_error else 0
            yield options
        yield Footer(show_command_palette=False, compact=True)

    def on_key(self, event: Key) -> None:
        if self._typed is not None and event.is_printable and event.character:
            event.stop()
            self.dismiss(None)
            self._typed(event.character)

    def _option(self, choice: ListEntry) -> Option:
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


class Palette(ClosedOnce, CommandPalette):
    """Textual's palette, whose search may outlive its list of results, and whose results may change."""

    def compose(self) -> ComposeResult:
        with Vertical(id="--container"):
            with Horizontal(id="--input"):
                yield SearchIcon()
                yield CommandInput(placeholder=self._placeholder, select_on_focus=False)
            with Vertical(id="--results"):
                yield Results()
                yield LoadingIndicator()

    def _on_click(self, event: Click) -> None:  # type: ignore[override]
        event.prevent_default()  # of the base class, which looks for a widget where the screen may have ended since
        with suppress(NoWidget):
            CommandPalette._on_click(self, event)

    @work(exclusive=True, group=CommandPalette._GATHER_COMMANDS_GROUP)
    async def _gather_commands(self, search_value: str) -> None:
        # Textual 8.2.8 looks for the list when the search begins, and without one it would end the chat.
        with suppress(NoMatches):
            await CommandPalette._gather_commands.__wrapped__(self, search_value)  # type: ignore[attr-defined]


class Results(CommandList, ChangingList):
    """The list of results."""
