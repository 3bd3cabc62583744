"""Messages that wait until an answer has ended or a model is loaded; then they are sent one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from edgespec.chat.attachments import Attachment, with_files
from edgespec.tui.base_app import BaseApp


@dataclass(frozen=True, slots=True)
class Unsent:
    """A message as it was typed, with its files."""

    text: str
    files: tuple[Attachment, ...] = ()
    key: int = field(default_factory=count().__next__, compare=False)


class WaitingMessages:
    """The messages of `app` that wait, in the order in which they will be sent.

    After an error, or when the user has stopped an answer, they are held until the user sends them with Enter: they may
    refer to an answer that does not exist.
    """

    def __init__(self, app: BaseApp) -> None:
        self._app = app
        self._messages: list[Unsent] = []
        self._held = ""  # why they are not sent by themselves; "" if they are

    def typed(self, text: str) -> Unsent:
        """Return a message with the attached files, which are attached no longer."""
        message = Unsent(text, tuple(self._app.session.attached))
        self._attach([])
        return message

    def add(self, message: Unsent) -> None:
        self._messages.append(message)
        self.show()

    def next(self) -> Unsent | None:
        """Return the message to send now, which waits no longer; None if there is none, or they are held."""
        if self._held or not self._messages:
            return None
        return self._pop(0)

    def hold(self, why: str) -> None:
        """Send no message until `release` is called."""
        self._held = why if self._messages else ""
        self.show()

    def release(self) -> None:
        self._held = ""
        self.show()

    def remove(self, key: int) -> None:
        """Remove a message, unless it was sent in the meantime."""
        if (index := self._place(key)) is not None:
            self._pop(index)

    def _pop(self, index: int) -> Unsent:
        message = self._messages.pop(index)
        self._held = self._held if self._messages else ""
        self.show()
        return message

    def give_back(self, message: Unsent) -> None:
        """Put a message that was rejected into the field, or before the others if the user is writing another one."""
        if self._app.composer.text:
            self._messages.insert(0, message)
        else:
            self._edit(message)

    def edit(self, key: int) -> None:
        """Put a message into the field, unless it was sent in the meantime. What is in the field waits in its place."""
        if (index := self._place(key)) is None:
            return
        if self._app.composer.text.strip():
            self._messages.insert(index + 1, self.typed(self._app.composer.text))
        self._edit(self._pop(index))

    def edit_last(self) -> bool:
        """Put the last message into the empty field. Returns False if there is none."""
        if self._messages:
            self.edit(self._messages[-1].key)
            return True
        return False

    def together(self) -> str:
        """Return these messages and the one in the field as one text, with their files.

        Without a text, only pasted files count: the user has the others, and may not want them in the next chat.
        """
        text, attached = self._app.composer.text, self._app.session.attached
        parts = [*self._messages, Unsent(text, tuple(file for file in attached if text.strip() or file.path is None))]
        files = [file for part in parts for file in part.files]
        return with_files(files, "\n\n".join(part.text for part in parts if part.text.strip()))

    def show(self) -> None:
        end = "when the model is loaded" if self._app.is_busy and not self._app.is_answering else "after this answer"
        sent = f"Enter sends · Up edits · held, because {self._held}" if self._held else f"Up edits · sent {end}"
        lines = [(message.key, message.text, len(message.files)) for message in self._messages]
        self._app.composer.waiting.show(lines, sent, is_held=bool(self._held))

    def _place(self, key: int) -> int | None:
        return next((place for place, message in enumerate(self._messages) if message.key == key), None)

    def _edit(self, message: Unsent) -> None:
        self._app.composer.put(message.text)
        if message.files:
            self._attach([*message.files, *self._app.session.attached])

    def _attach(self, files: list[Attachment]) -> None:
        self._app.session.attached = files
        self._app.commands.front.show_files()
