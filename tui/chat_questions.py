"""Questions at the bottom of the list of chats, and the changes to a chat that follow from the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widgets import Button, Input, Static

from edgespec.chat.session import Session
from edgespec.text.printable import one_line

Change = Callable[[Session], None]
"""Changes a chat of the session's store. Raises StoreError."""


@dataclass
class ChangeChat(Message):
    """A chat of the store is to be changed; `change` is None if a question was answered with no change."""

    change: Change | None


def rename(chat: str, title: str) -> Change:
    """Return the change that gives a chat another title."""

    def change(session: Session) -> None:
        if chat == session.chat:
            session.rename(title)
        else:
            session.store.rename(chat, title)

    return change


class Asking(Vertical):
    """A question, answered with a `ChangeChat`."""

    BINDINGS = [Binding("escape", "cancel", "Cancel", id="sidebar.cancel")]  # noqa: RUF012

    def on_mount(self) -> None:
        self.query("Input, Button").first().focus()

    def action_cancel(self) -> None:
        self.post_message(ChangeChat(None))


class AskingText(Asking):
    """Asks for a text, initially `before`; `change_to` returns the change for another text. `known` texts complete what
    is typed."""

    def __init__(
        self, question: str, before: str, change_to: Callable[[str], Change | None], known: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._question, self._before, self._change_to, self._known = question, one_line(before), change_to, known

    def compose(self) -> ComposeResult:
        yield Static(self._question)
        suggester = SuggestFromList(self._known, case_sensitive=False) if self._known else None
        text = Input(self._before, compact=True, suggester=suggester)
        text.cursor_blink = False
        yield text

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = one_line(event.value)
        self.post_message(ChangeChat(self._change_to(text) if text != self._before else None))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()


class AskingYes(Asking):
    """Asks whether to do something that cannot be undone."""

    BINDINGS = [  # noqa: RUF012
        Binding("y", "confirm", "Yes", id="sidebar.yes"),
        Binding("n", "cancel", "No", id="sidebar.no"),
        Binding("left,right", "other", show=False),
    ]

    def __init__(self, question: str, yes: str, no: str, change: Change) -> None:
        super().__init__()
        self._question, self._labels, self._change = question, (no, yes), change

    def compose(self) -> ComposeResult:
        yield Static(self._question, markup=False)
        with Horizontal():
            yield Button(self._labels[0], compact=True)
            yield Button(self._labels[1], compact=True, variant="error")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.variant == "error":
            self.action_confirm()
        else:
            self.action_cancel()

    def action_confirm(self) -> None:
        self.post_message(ChangeChat(self._change))

    def action_other(self) -> None:
        self.screen.focus_next(Button)
