"""The line of keys at the bottom, which begins with the name of the focused part of the screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Footer, Static, TextArea
from textual.widgets._footer import FooterKey

from edgespec.tui.sidebar import Sidebar
from edgespec.tui.transcript import Transcript

MODES: tuple[tuple[type[Widget], str], ...] = (
    (TextArea, "Writing"),
    (Transcript, "Messages"),
    (Sidebar, "Chats"),
)
NOT_OF_CHATS = {"call('tokens')", "call('clear')", "call('list')", "command_palette"}
"""Actions for which the line has no room while the chats have the focus. Their keys work."""


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
        for key in super().compose():
            if not (mode == MODES[-1][1] and isinstance(key, FooterKey) and key.action in NOT_OF_CHATS):
                yield key


def mode_of(focused: Widget | None) -> str:
    """Return the name of the part of the chat that this widget belongs to."""
    parts = focused.ancestors_with_self if focused is not None else ()
    return next((name for kind, name in MODES if any(isinstance(part, kind) for part in parts)), "")
