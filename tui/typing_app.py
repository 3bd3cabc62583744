"""An app in which typed and pasted text reaches the field for messages, also after a click elsewhere."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod

from textual.app import App
from textual.events import Click, Event, Key, Paste
from textual.widget import Widget

from edgespec.tui.prompt_input import PromptInput

CONTROL = ("Cc", "Cs")  # Unicode categories of characters that are no text


class TypingApp(App[None]):
    """Letters are text, except while the user has moved the focus to messages or chats with a key."""

    @property
    @abstractmethod
    def field(self) -> PromptInput:
        """The field for messages."""

    @abstractmethod
    def shows_messages(self, widget: Widget) -> bool:
        """Return whether this widget shows messages, or is a part of one that does."""

    @property
    def is_above(self) -> bool:
        """True while a screen covers the chat."""
        return len(self.screen_stack) > 1

    async def on_event(self, event: Event) -> None:
        """Insert characters that Python does not call printable, too.

        Textual's fields drop the joiners of Persian, marks of direction, and spaces that are not ASCII. They take the
        same characters from a paste.
        """
        if isinstance(event, Key) and not event.is_forwarded and _is_other_text(event):
            event = Paste(event.character or "")
        await super().on_event(event)

    def on_key(self, event: Key) -> None:
        """Move text to the field for messages if the focused widget does not take it."""
        binding = self.screen.active_bindings.get(event.key)
        is_bound = binding is not None and binding.enabled
        if self._takes_text() and event.is_printable and event.character and not is_bound:
            self.field.focus()
            self.field.insert(event.character)
            event.prevent_default()

    def on_paste(self, event: Paste) -> None:
        """Move a paste to the field for messages if the focused widget does not take it."""
        if self._takes_text() and self.focused is not self.field:
            self.field.focus()
            self.field.take_paste(event.text)

    def on_click(self, event: Click) -> None:
        """Continue to write after a click on a message: a click must not turn letters into commands."""
        if not self.is_above and event.widget is not None and self.shows_messages(event.widget):
            self.field.focus()

    def _takes_text(self) -> bool:
        """Return whether text that arrives here belongs into the field for messages."""
        focused = self.focused
        return not self.is_above and (focused in (None, self.field) or self.shows_messages(focused))


def _is_other_text(event: Key) -> bool:
    """Return whether a key's character is text but not printable in Python's sense."""
    character = event.character
    return character is not None and not event.is_printable and unicodedata.category(character) not in CONTROL
