"""The interface that the commands of a chat need of its front end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edgespec.cancel import CancelFlag
from edgespec.chat.answerer import Events, Level
from edgespec.chat.comparing import Comparison
from edgespec.chat.personas import Persona
from edgespec.settings import LoadSettings


class Front(Protocol):
    """A plain terminal or the screen. `say` takes plain text of one or several lines."""

    def say(self, text: str, level: Level = "info") -> None: ...

    def answer(self, start: Callable[[CancelFlag], Events]) -> None:
        """Start an answer and show it."""

    def redraw(self) -> None:
        """Show the conversation again: it has changed."""

    def put(self, text: str) -> None:
        """Put a text into the input field, to be edited and sent."""

    def copy(self, text: str) -> None: ...

    def load(self, settings: LoadSettings) -> None: ...

    def compare(self, comparison: Comparison) -> None:
        """Run a comparison, and show both answers."""

    def show_files(self) -> None:
        """Show the files attached to the next message."""

    def edit_persona(self, chosen: Persona, take: Callable[[Persona], None]) -> None:
        """Let the user edit a persona; if it is saved, call `take` with the new version. Raises UsageError."""

    def show_tokens(self) -> None:
        """Show which drafter proposed each token, or hide it."""

    def leave(self) -> None: ...
