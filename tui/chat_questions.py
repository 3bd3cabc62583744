"""Questions about a chat, asked in the list of chats: another title, and whether to delete it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button, Input, Static

from edgespec.history import ChatInfo
from edgespec.text.printable import one_line
from edgespec.tui.chat_rows import messages


class RenameChat(Message):
    """A chat gets another title."""

    def __init__(self, chat: str, title: str) -> None:
        super().__init__()
        self.chat, self.title = chat, title


class DeleteChat(Message):
    """Delete a chat: the user has confirmed it."""

    def __init__(self, chat: str) -> None:
        super().__init__()
        self.chat = chat


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


class Renaming(Asking):
    """Asks for another title."""

    def compose(self) -> ComposeResult:
        yield Static("New title:")
        title = Input(one_line(self.chat.title), compact=True)
        title.cursor_blink = False
        yield title

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_answer(True)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()

    def consequence(self) -> Message | None:
        title = self.query_one(Input).value.strip()
        return RenameChat(self.chat.id, title) if title not in ("", one_line(self.chat.title)) else None


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
