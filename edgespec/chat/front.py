"""What the commands of a chat need from the front end that shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edgespec.cancel import CancelFlag
from edgespec.chat.answerer import Events, Level
from edgespec.chat.comparing import Comparison
from edgespec.chat.personas import Persona
from edgespec.settings import LoadSettings


class Front(Protocol):
    """What a command needs from a front end. `say` takes plain text of one or several lines."""

    def say(self, text: str, level: Level = "info") -> None: ...

    def answer(self, start: Callable[[CancelFlag], Events]) -> None:
        """Start an answer and show it."""

    def redraw(self) -> None:
        """The conversation has changed: show it anew."""

    def put(self, text: str) -> None:
        """Put a text into the input, to be edited and sent."""

    def copy(self, text: str) -> None: ...

    def load(self, settings: LoadSettings) -> None: ...

    def compare(self, comparison: Comparison) -> None:
        """Make both answers, and show them."""

    def show_files(self) -> None:
        """Show what is attached to the next message."""

    def edit_persona(self, persona: Persona) -> None:
        """Let the user edit it, and take it again if this chat has it."""

    def show_tokens(self) -> None:
        """Show which drafter proposed each token, or stop showing it."""

    def leave(self) -> None: ...
