"""The command palette, which may be closed while it searches."""

from __future__ import annotations

from contextlib import suppress

from textual import work
from textual.app import ComposeResult
from textual.command import CommandInput, CommandList, CommandPalette, SearchIcon
from textual.css.query import NoMatches
from textual.errors import NoWidget
from textual.events import Click
from textual.widgets import LoadingIndicator

from edgespec.tui.plain import ChangingList, Horizontal, Vertical
from edgespec.tui.screens import ClosedOnce


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
