"""What becomes of a chat in the list of chats, and the questions that are asked before."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widgets import Button, Input, Static

from edgespec.chat.session import Session
from edgespec.history import ChatInfo
from edgespec.text.printable import one_line
from edgespec.tui.chat_rows import messages


class ChangeChat(Message):
    """Something becomes of a chat of the store."""

    def __init__(self, chat: str) -> None:
        super().__init__()
        self.chat = chat

    def apply(self, session: Session) -> None:
        """Raises StoreError."""
        raise NotImplementedError


class RenameChat(ChangeChat):
    """A chat gets another title."""

    def __init__(self, chat: str, title: str) -> None:
        super().__init__(chat)
        self.title = title

    def apply(self, session: Session) -> None:
        if self.chat == session.chat:
            session.rename(self.title)
        else:
            session.store.rename(self.chat, self.title)


class DeleteChat(ChangeChat):
    """Delete a chat: the user has confirmed it."""

    def apply(self, session: Session) -> None:
        session.delete(self.chat)


class PinChat(ChangeChat):
    """Let a chat stand above the others, or not."""

    def __init__(self, chat: str, is_pinned: bool) -> None:
        super().__init__(chat)
        self.is_pinned = is_pinned

    def apply(self, session: Session) -> None:
        session.store.pin(self.chat, self.is_pinned)


class MoveChat(ChangeChat):
    """A chat goes into a folder; "" is none."""

    def __init__(self, chat: str, folder: str) -> None:
        super().__init__(chat)
        self.folder = folder

    def apply(self, session: Session) -> None:
        session.store.move(self.chat, self.folder)


class Asking(Vertical):
    """A question about a chat at the bottom of the sidebar."""

    DEFAULT_CSS = """
    Asking {
        height: auto;
        padding: 0 1;
        background: $panel;
        & > Horizontal { height: 1; }
        & Button { width: auto; min-width: 0; margin-right: 1; }
    }
    """
    BINDINGS = [Binding("escape", "answer(False)", "Cancel", id="sidebar.cancel")]  # noqa: RUF012

    class Answered(Message):
        """The message that follows from the answer; None for nothing."""

        def __init__(self, message: Message | None) -> None:
            super().__init__()
            self.message = message

    def __init__(self, chat: ChatInfo) -> None:
        super().__init__()
        self.chat = chat

    def on_mount(self) -> None:
        self.query("Input, Button").first().focus()

    def consequence(self) -> Message | None:
        """The message for a yes."""
        raise NotImplementedError

    def action_answer(self, is_yes: bool) -> None:
        self.post_message(self.Answered(self.consequence() if is_yes else None))


class AskingText(Asking):
    """Asks for a text; `known` ones complete what is typed."""

    QUESTION = ""

    def __init__(self, chat: ChatInfo, before: str, known: Sequence[str] = ()) -> None:
        super().__init__(chat)
        self._before, self._known = before, known

    def compose(self) -> ComposeResult:
        yield Static(self.QUESTION)
        suggester = SuggestFromList(self._known, case_sensitive=False) if self._known else None
        text = Input(self._before, compact=True, suggester=suggester)
        text.cursor_blink = False
        yield text

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_answer(True)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()

    @property
    def text(self) -> str:
        return one_line(self.query_one(Input).value)


class Renaming(AskingText):
    """Asks for another title."""

    QUESTION = "New title:"

    def __init__(self, chat: ChatInfo) -> None:
        super().__init__(chat, one_line(chat.title))

    def consequence(self) -> Message | None:
        return RenameChat(self.chat.id, self.text) if self.text not in ("", self._before) else None


class Moving(AskingText):
    """Asks for a folder."""

    QUESTION = "Folder (leave empty for none):"

    def __init__(self, chat: ChatInfo, known: Sequence[str] = ()) -> None:
        super().__init__(chat, one_line(chat.folder), known)

    def consequence(self) -> Message | None:
        return MoveChat(self.chat.id, self.text) if self.text != self._before else None


class Deleting(Asking):
    """Asks whether to delete a chat."""

    BINDINGS = [  # noqa: RUF012
        Binding("y", "answer(True)", "Delete", id="sidebar.yes"),
        Binding("n", "answer(False)", "Keep", id="sidebar.no"),
        Binding("left,right", "other", show=False),
    ]

    def compose(self) -> ComposeResult:
        yield Static(
            f"Delete {one_line(self.chat.title) or 'untitled'!r} with its {messages(self.chat.n_turns)}?", markup=False
        )
        with Horizontal():
            yield Button("No, keep it", compact=True)
            yield Button("Yes, delete", compact=True, variant="error")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_answer(event.button.variant == "error")

    def action_other(self) -> None:
        self.screen.focus_next(Button)

    def consequence(self) -> Message:
        return DeleteChat(self.chat.id)
