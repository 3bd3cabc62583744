"""The controls of a chat: what commands need of a front end, and what both front ends do in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

from edgespec.cancel import CancelFlag
from edgespec.chat.attachments import Read, attachment, described, joined
from edgespec.chat.comparing import AnswerComparison
from edgespec.chat.events import ChatEvents, Level
from edgespec.chat.session import Session
from edgespec.documents.reader import Said
from edgespec.errors import UsageError, told_as
from edgespec.files.paths import free_name, write_whole
from edgespec.history import Turn
from edgespec.settings import LoadSettings
from edgespec.text.code_blocks import CodeBlock
from edgespec.text.figures import counted


class Front(Protocol):
    """The interface that commands need of a plain terminal or the screen. `say` takes one or several lines of text."""

    def say(self, text: str, level: Level = "info") -> None: ...
    def copy(self, text: str) -> None: ...
    def load(self, settings: LoadSettings) -> None: ...
    def leave(self) -> None: ...
    def answer(self, start: Callable[[CancelFlag], ChatEvents]) -> None:
        """Start an answer and show it."""

    def redraw(self) -> None:
        """Show the conversation again: it has changed."""

    def put(self, text: str) -> None:
        """Put a text into the input field, to be edited and sent."""

    def open_editor(self) -> None:
        """Let the user write the message in a text editor."""

    def compare(self, comparison: AnswerComparison) -> None:
        """Run a comparison, and show both answers."""

    def read(self, read: Callable[[Said, CancelFlag], Read], take: Callable[[Read], None]) -> None:
        """Call `read`, which may take long: show its progress, and let the user cancel it. Then call `take`."""

    def show_files(self) -> None:
        """Show the files attached to the next message."""

    def show_tokens(self) -> None:
        """Show which drafter proposed each token, or hide it."""


class Controls:
    """A session and its front end, for commands, with what one command leaves for the next one.

    `listed` are the chats, and messages in them, of the last list. `compared` is the last comparison.
    """

    def __init__(self, session: Session, front: Front) -> None:
        self.session, self.front = session, front
        self.listed: Sequence[tuple[str, str | None]] = ()
        self.compared: AnswerComparison | None = None

    def attach(self, read: Read) -> None:
        """Attach files that were read. Raises UsageError."""
        added, left_out = read
        self.session.chat.attached = joined(self.session.chat.attached, added)
        if left_out:
            self.front.say("\n".join(["not attached:", *left_out]), "warning")
        self.front.show_files()

    def attach_text(self, text: str) -> None:
        """Attach a pasted text as a new file. Raises UsageError."""
        names = {file.name for file in self.session.chat.attached}
        name = next(name for number in count(1) if (name := f"pasted-{number}.txt") not in names)
        self.attach(([attachment(name, text.encode("utf-8", "replace"))], []))

    def files(self) -> str:
        """Return the attachments with sizes and token counts."""
        chat = self.session.chat
        if not chat.attached:
            return "nothing is attached"
        lines = [
            f"{n:3}  {file.name}  ({described([file], chat.counts.count(file))})"
            for n, file in enumerate(chat.attached, 1)
        ]
        total = f"{counted(len(chat.attached), 'file')}, {described(chat.attached, chat.counts.total(chat.attached))}"
        ends = [f"{total}, for your next message; /file none removes", chat.trouble()]
        return "\n".join(filter(None, [*lines, *ends]))

    def remedies(self) -> str:
        """Return what `/restart` can do after a failure, as a list."""
        lines = [f"{place}  {offer.label}" for place, offer in enumerate(self.session.model.remedies(), 1)]
        return "\n".join([*lines, "/restart N loads with these settings, /restart with those of before"])

    def compare(self, comparison: AnswerComparison) -> None:
        self.compared = comparison
        self.front.compare(comparison)

    def last_answer(self) -> Turn:
        """Return the last answer of the chat. Raises UsageError."""
        chat = self.session.chat
        for turn in reversed(chat.turns):
            if turn.role == "assistant":
                return turn
        raise UsageError("the answer is not finished" if chat.is_answering else "there is no answer yet")

    def save_code(self, block: CodeBlock, name: str = "") -> None:
        """Write code to a new file, by default in the current folder. Raises UsageError."""
        self.write("save", name, "code", block.suffix, block.code + "\n")

    def write(self, command: str, name: str, stem: str, suffix: str, text: str) -> None:
        """Write a new file, by default STEM and SUFFIX in the current folder, and show its path. Raises UsageError."""
        file = Path(name).expanduser() if name else free_name(stem, suffix)
        if file.is_dir():
            file = file / f"{stem}{suffix}"
        if file.exists():
            raise UsageError(f"{file} already exists", hint=f"/{command} FILE with another name")
        with told_as(UsageError, f"{file} cannot be written"):
            write_whole(file, text)
        self.front.say(f"written to {file.absolute()}")


def index_of(text: str, most: int) -> int:
    """Return the index, from 0, for a number from 1 to `most`. Raises UsageError."""
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise UsageError(f"choose a number from 1 to {most}" if most else "there is nothing to choose from")
    return int(text) - 1
