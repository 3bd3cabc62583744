"""The keys and commands on one page."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from edgespec.chat.slash import COMMANDS

WIDE = 98  # cells that the longest line needs
KEYS = (
    ("Enter", "Send the message."),
    ("Ctrl+J", "Start a new line."),
    ("Esc", "Stop the answer, close what is open, cancel a command."),
    ("Up, Down", "Browse your earlier messages."),
    ("Tab", "Complete a command; move to the next part of the screen."),
    ("Shift+Tab", "Select messages: E edits, C copies, 1-9 copy code blocks, Shift+Right scrolls them."),
    ("Ctrl+P", "Search all commands, and change the theme."),
)


class HelpScreen(ModalScreen[None]):
    """The help of `COMMANDS`."""

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
        self.query_one(Static).update(_page(is_wide=event.size.width >= WIDE))


def _page(*, is_wide: bool) -> Content:
    """One line each, or two if there is no room: the name and the help."""
    rows = [(key, "", help) for key, help in KEYS]
    rows += [(shown(command.key), command.title, command.help) for command in COMMANDS]
    keys, titles = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = []
    for key, title, help in rows:
        name = Content.assemble((key.ljust(keys), "bold $text-primary"), "  ", (title.ljust(titles), "bold"))
        between = "  " if is_wide else "\n" + " " * (keys + 2)
        if not title:
            name, between = Content.styled(key.ljust(keys), "bold $text-primary"), "  "
        lines.append(Content.assemble(name, between, (help, "dim")))
    return Content("\n").join(lines)


def shown(key: str) -> str:
    """A key as people write it."""
    return "+".join(part.capitalize() for part in key.split("+"))
