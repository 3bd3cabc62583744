"""The chat command that attaches files to the next message."""

from __future__ import annotations

from itertools import count

from edgespec.chat.attachments import attach, attachment, check_size
from edgespec.chat.front import Front
from edgespec.chat.session import Session
from edgespec.errors import EdgespecError, UsageError
from edgespec.text.figures import counted, size_of

NONE = "none"
USAGE = "/file PATH... attaches files: src/*.py, 'my notes.txt', a folder"


class FileCommands:
    session: Session
    front: Front

    def do_file(self, argument: str) -> None:
        """`/file`: list attachments; `/file PATH...`: attach; `/file none`, `/file none N`: remove all, or number N."""
        word, _, number = argument.partition(" ")
        session = self.session
        if word == NONE:
            remove(session, number.strip())
        elif argument:
            session.attached, _, left_out = attach(session.attached, argument)
            if left_out:
                self.front.say("\n".join(["not attached:", *left_out]), "warning")
        elif not session.attached:
            raise UsageError("nothing is attached", hint=USAGE)
        self.front.show_files()

    def attach_text(self, text: str) -> None:
        """Attach a pasted text as a new file. Raises UsageError."""
        attached = self.session.attached
        names = {file.name for file in attached}
        name = next(name for number in count(1) if (name := f"pasted-{number}.txt") not in names)
        together = [*attached, attachment(name, text.encode("utf-8", "replace"))]
        check_size(together)
        self.session.attached = together
        self.front.show_files()


def remove(session: Session, number: str = "") -> None:
    """Remove the attachment with this number, counted from 1, or all attachments. Raises UsageError."""
    n_files = len(session.attached)
    if not number:
        session.attached = []
    elif number.isdecimal() and 1 <= int(number) <= n_files:
        session.attached = [file for place, file in enumerate(session.attached, 1) if place != int(number)]
    else:
        raise UsageError(f"there is no attachment {number!r}", hint="/file lists them")


def listed(session: Session) -> str:
    """Return a list of the attachments with sizes and token counts, and a warning if older messages will be dropped."""
    if not session.attached:
        return "nothing is attached"
    files = session.attached
    lines = [
        f"{place:3}  {file.name}  ({file.described(session.counts.count(file))})" for place, file in enumerate(files, 1)
    ]
    total = session.counts.total(files)
    in_all = size_of(sum(file.n_bytes for file in files)) + ("" if total is None else f", {total:,} tokens")
    what = f"{counted(len(files), 'file')}, {in_all}: goes" if len(files) == 1 else f"{len(files)} files, {in_all}: go"
    warning = crowding(session)
    return "\n".join(filter(None, [*lines, f"{what} with your next message; /file none removes", warning]))


def crowding(session: Session) -> str:
    """Return a warning if sending the attachments drops older messages from the context, or does not fit; else ""."""
    if not session.attached or session.engine is None:
        return ""
    try:
        n_dropped = session.n_pushed_out()
    except UsageError as error:
        return f"this does not fit: {error.what}"
    except EdgespecError:  # the model has died, which its next request reports
        return ""
    if not n_dropped:
        return ""
    return (
        f"sending this drops {counted(n_dropped, 'older message')} from the context of {session.context_size:,} tokens"
    )
