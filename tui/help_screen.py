"""The keys and commands on one page."""

from __future__ import annotations

from textwrap import wrap

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from edgespec.chat.slash import COMMANDS

WIDE, BORDERS = 98, 5  # cells
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
            yield Static()
        yield Footer(show_command_palette=False, compact=True)

    def on_resize(self, event: Resize) -> None:
        self.query_one(Static).update(_page(min(WIDE, event.size.width) - BORDERS))


def _page(width: int) -> Content:
    """Return the page: keys and names on the left, the help next to them, or below the name on narrow screens."""
    rows = [(key, "", help) for key, help in KEYS]
    rows += [(shown(command.key), command.title, command.help) for command in COMMANDS]
    keys, titles = (max(len(row[column]) for row in rows) + 2 for column in (0, 1))
    is_wide = width >= WIDE - BORDERS
    lines = []
    for key, title, help in rows:
        indent = " " * (keys + (titles if title and is_wide else 0))
        name = title.ljust(titles) if is_wide and title else f"{title}\n{indent}" if title else ""
        said = f"\n{indent}".join(wrap(help, max(1, width - len(indent))))
        lines.append(Content.assemble((key.ljust(keys), "bold $text-primary"), (name, "bold"), (said, "dim")))
    return Content("\n").join(lines)


def shown(key: str) -> str:
    """Return a key as people write it."""
    return "+".join(part.capitalize() for part in key.split("+"))
