"""The system prompt of a chat, above its first message: one line that unfolds."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from edgespec.text.printable import one_line, printable

LONG = 8_000  # characters that are shown


class SystemPrompt(Static, can_focus=True):
    """Shows the system prompt. A click does not focus it: with the focus, E would become a command."""

    FOCUS_ON_CLICK = False
    DEFAULT_CSS = """
    SystemPrompt {
        display: none;
        height: auto;
        margin-bottom: 1;
        padding: 0 1;
        border-left: blank;
        color: $text-muted;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &.-open { text-wrap: wrap; }
        &:focus { border-left: thick $accent; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "app.call('system')", "Edit", id="system.edit"),
        Binding("enter", "open", "Show all", id="system.open"),
    ]

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._text = self._persona = ""

    def show(self, text: str, persona: str = "") -> None:
        """Show a system prompt and the name of its persona; without both the widget is hidden."""
        self._text, self._persona = text, persona
        self.display = bool(text or persona)
        self._draw()

    def _draw(self) -> None:
        name = f"System prompt · {self._persona}" if self._persona else "System prompt"
        if self.has_class("-open"):
            more = f"\n… {len(self._text) - LONG:,} more characters" if len(self._text) > LONG else ""
            self.update(Content(f"▾ {name} (E edits it)\n{printable(self._text[:LONG])}{more}"))
        else:
            self.update(Content(f"▸ {name}: {one_line(self._text[:LONG]) or 'none'}"))

    def on_click(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Unfold or fold it."""
        self.toggle_class("-open")
        self._draw()
        if isinstance(self.parent, Widget):  # the parent would keep the messages in place, and this widget out of view
            self.call_after_refresh(self.parent.scroll_home, animate=False)
