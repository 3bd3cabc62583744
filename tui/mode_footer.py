"""The line of keys at the bottom, which begins with the name of the focused part of the screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Footer, Static, TextArea

from edgespec.tui.sidebar import Sidebar
from edgespec.tui.transcript import Transcript

MODES: tuple[tuple[type[Widget], str], ...] = (
    (TextArea, "Writing"),
    (Transcript, "Messages"),
    (Sidebar, "Chats"),
)


class ModeFooter(Footer):
    """Shows which part of the chat has the focus: letters are text in one part and commands in another."""

    DEFAULT_CSS = """
    ModeFooter > .mode {
        width: auto;
        margin-right: 1;
        padding: 0 1;
        background: $panel;
        color: $foreground;
        &.-commands { background: $accent; color: $background; text-style: bold; }
    }
    """

    def compose(self) -> ComposeResult:
        mode = mode_of(self.screen.focused)
        if mode:
            yield Static(mode, classes="mode" if mode == MODES[0][1] else "mode -commands", markup=False)
        yield from super().compose()


def mode_of(focused: Widget | None) -> str:
    """Return the name of the part of the chat that this widget belongs to."""
    parts = focused.ancestors_with_self if focused is not None else ()
    return next((name for kind, name in MODES if any(isinstance(part, kind) for part in parts)), "")
