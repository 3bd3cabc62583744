"""Dialogs above the chat: a list to choose from, the keys and commands, and the file of a persona."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from edgespec.chat.personas import Persona, as_toml, save_text
from edgespec.chat.slash import COMMANDS
from edgespec.errors import EdgespecError, told_as
from edgespec.text.printable import one_line, printable

KEYS = (
    ("Enter", "Send the message."),
    ("Ctrl+J", "Start a new line."),
    ("Esc", "Stop the answer, close a screen, cancel a command."),
    ("Up, Down", "Browse your earlier messages."),
    ("Tab", "Complete a command; move to the next part of the screen."),
    (
        "Shift+Tab",
        "Select messages: E edits, C copies, R regenerates, Enter unfolds, Left and Right switch versions, 1-9 copy "
        "code blocks, S saves and Shift+Right scrolls them; Tab or Esc returns to the input field.",
    ),
    ("Chats", "In the list: Enter opens, N new, R rename, P pin, F folder, D delete, / searches, Ctrl+B hides it."),
    ("Ctrl+P", "Search all commands, and change the theme."),
)
FIELDS = "TOML: description, system, model, and the settings of /set, one per line, for example temp = 0.2"


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

    BINDINGS = [Binding("escape", "dismiss(None)", "Close", id="choice.close")]  # noqa: RUF012

    def __init__(
        self, title: str, text: str, choices: Sequence[Choice], current: str = "", *, is_error: bool = False
    ) -> None:
        super().__init__(classes="-error" if is_error else None)
        self._title, self._text, self._choices, self._current = title, text, choices, current
        self._is_error = is_error

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
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


class HelpScreen(ModalScreen[None]):
    """Shows the keys, and the help of `COMMANDS`."""

    BINDINGS = [Binding("escape,f1,q", "dismiss", "Close", key_display="Esc", id="help.close")]  # noqa: RUF012

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as box:
            box.border_title = "keys and commands"
            yield Static(_page())
        yield Footer(show_command_palette=False, compact=True)


def _page() -> Table:
    """Return the page: keys on the left, names and help next to them."""
    page = Table.grid(padding=(0, 2))
    page.add_column(style="bold", no_wrap=True)
    for key, help in KEYS:
        page.add_row(key, Text(help, "dim"))
    for command in COMMANDS:
        page.add_row(shown(command.key), Text.assemble((command.title, "bold"), "  ", (command.help, "dim")))
    return page


def shown(key: str) -> str:
    """Return a key as people write it."""
    return "+".join(part.capitalize() for part in key.split("+"))


class PersonaEditor(ModalScreen[Persona | None]):
    """Edits the file of `persona`; the result is the persona as saved, or None if the user cancels."""

    BINDINGS = [  # noqa: RUF012 - Textual declares it so
        Binding("escape", "cancel", "Cancel", id="persona.cancel"),
        Binding("ctrl+s", "save", "Save", id="persona.save", priority=True),
    ]

    def __init__(self, persona: Persona) -> None:
        super().__init__()
        self._persona = persona
        with told_as(EdgespecError, f"persona {persona.name} cannot be read"):
            self._text = persona.file.read_text(encoding="utf-8-sig") if persona.file else as_toml(persona)
        self._is_warned = False  # True if the next Esc drops the changes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = f"persona {self._persona.name}"
            area = TextArea(self._text, highlight_cursor_line=False)
            area.cursor_blink = False
            yield area
            yield Static(FIELDS, markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def action_save(self) -> None:
        """Save and close, unless there is a mistake."""
        try:
            self.dismiss(save_text(self._persona.name, self.query_one(TextArea).text))
        except EdgespecError as error:
            self._say(str(error))

    def action_cancel(self) -> None:
        """Close; a second Esc confirms that changes are dropped."""
        if self._is_warned or self.query_one(TextArea).text == self._text:
            self.dismiss(None)
        else:
            self._is_warned = True
            self._say("not saved: Ctrl+S saves the changes, Esc again drops them")

    def on_text_area_changed(self) -> None:
        self._is_warned = False

    def _say(self, text: str) -> None:
        self.query_one(Static).update(printable(text))
