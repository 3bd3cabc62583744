"""The keys and commands on one page."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from edgespec.chat.slash import COMMANDS

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


class HelpScreen(ModalScreen[None]):
    """Shows the keys, and the help of `COMMANDS`."""

    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        & > VerticalScroll {
            width: 98;
            max-width: 100%;
            height: auto;
            max-height: 100%;
            border: round $border;
            background: $background;
            padding: 0 1;
            scrollbar-size-vertical: 1;
        }
    }
    """
    BINDINGS = [Binding("escape,f1,q", "dismiss", "Close", key_display="Esc", id="help.close")]  # noqa: RUF012

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
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
