"""The command palette, which may be closed while it searches."""

from __future__ import annotations

from contextlib import suppress

from textual import work
from textual.command import CommandPalette
from textual.css.query import NoMatches


class Palette(CommandPalette):
    """Textual's palette, whose search may outlive its list of results."""

    @work(exclusive=True, group=CommandPalette._GATHER_COMMANDS_GROUP)
    async def _gather_commands(self, search_value: str) -> None:
        # Textual 8.2.8 looks for the list when the search begins, and without one it would end the chat.
        with suppress(NoMatches):
            await CommandPalette._gather_commands.__wrapped__(self, search_value)  # type: ignore[attr-defined]
