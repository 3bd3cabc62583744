"""The screen as commands see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edgespec.cancel import CancelFlag
from edgespec.chat.answerer import Events, Level
from edgespec.chat.clipboard import copy_natively
from edgespec.chat.comparing import Comparison
from edgespec.chat.personas import Persona
from edgespec.settings import LoadSettings
from edgespec.tui.toasts import toast

if TYPE_CHECKING:
    from edgespec.tui.app import ChatApp


class ScreenFront:
    """The `Front` of the screen."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app

    def say(self, text: str, level: Level = "info") -> None:
        self._app.say(text, level)

    def answer(self, start: Callable[[CancelFlag], Events]) -> None:
        self._app.jobs.answer(start)
        self._app.composer.input.focus()

    def redraw(self) -> None:
        self._app.call_later(self._app.redraw)
        self._app.composer.input.focus()  # the focused widget may be gone

    def put(self, text: str) -> None:
        self._app.composer.put(text)

    def copy(self, text: str) -> None:
        self._app.copy_to_clipboard(text)  # OSC 52
        self._app.run_worker(lambda: copy_natively(text), thread=True, exit_on_error=False)
        self._app.notify(f"{len(text):,} characters copied")

    def load(self, settings: LoadSettings) -> None:
        self._app.downloads.load(settings)

    def compare(self, comparison: Comparison) -> None:
        self._app.screens.compare(comparison)

    def show_files(self) -> None:
        self._app.files.show()
        self._app.composer.input.focus()

    def edit_persona(self, persona: Persona) -> None:
        self._app.screens.edit_persona(persona)

    def show_tokens(self) -> None:
        transcript = self._app.transcript
        transcript.show_tokens = not transcript.show_tokens
        if not self._app.session.turns:  # nothing else shows that the key was heard
            toast(self._app, f"new answers are shown {'with' if transcript.show_tokens else 'without'} their drafters")

    def leave(self) -> None:
        self._app.exit()
