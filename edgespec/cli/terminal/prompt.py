"""Input of a command: its prompt, from the command line, files and stdin, and answers to questions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import click

from edgespec.errors import UsageError
from edgespec.files.images import has_image_name, size_of_image
from edgespec.settings import Image
from edgespec.text.encodings import decoded

if TYPE_CHECKING:
    from edgespec.chat.attachments import Attachment

BETWEEN = "\n\n"
PATIENCE_S = 2.0  # before a note says that stdin is being read
WAITING = "waiting for the end of stdin, which is not a terminal (skip it with '< /dev/null')"


def read_prompt(
    argument: str | None,
    files: Sequence[str],
    note: Callable[[str], None],
    read: Callable[[str], list[Attachment]],
    *,
    is_needed: bool = True,
) -> str:
    """Return the prompt: the argument, then the files, then piped input, with blank lines between them; empty if it is
    not needed and there is none.

    `-` in place of the argument or a file is stdin. `note` reports waiting for stdin. `read` reads documents, folders
    and patterns, which are added with their names as in a chat. Raises UsageError.
    """
    sources = [*(["-"] if argument == "-" else []), *files]
    parts: list[str] = []
    for source in sources:
        if source == "-":
            parts.append(_from_stdin(note))
        elif _is_prompt_file(source):
            parts.append(_decode(_read_file(Path(source)), source))
        else:
            parts += [file.block for file in read(source)]
    if argument not in (None, "-"):
        parts.insert(0, str(argument))
    if "-" not in sources and sys.stdin is not None and not sys.stdin.isatty():
        piped = _from_stdin(note, is_needed=is_needed and not parts)
        parts += [piped] if piped.strip() or (is_needed and not parts) else []
    if is_needed and not parts:
        raise UsageError("there is no prompt", hint="pass one as an argument, with --file FILE, or through a pipe")
    return BETWEEN.join(filter(None, parts))


def read_images(files: Sequence[str]) -> tuple[list[Image], list[str]]:
    """Return the images among some files, and the other files. Raises UsageError."""
    images = [Image(_read_file(Path(file)), name=file) for file in files if has_image_name(file)]
    for image in images:
        size_of_image(image.data, image.name)
    return images, [file for file in files if not has_image_name(file)]


def agreed(question: str, *, yes: bool) -> bool:
    """Return whether the user agrees to a deletion; `yes` agrees. Raises UsageError if there is no terminal to ask."""
    if yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("nothing was deleted", why="there is no terminal to ask for confirmation", hint="add -y")
    return click.confirm(question, err=True)


def _from_stdin(note: Callable[[str], None], *, is_needed: bool = True) -> str:
    """Read all of stdin, however long that takes: the other end of a pipe may have to load a model first. Without
    `is_needed`, stdin that cannot be read, as after `nohup`, is empty."""
    if sys.stdin is None:
        raise UsageError("there is no prompt", why="stdin is closed")
    try:
        return _decode(read_stdin(note), "stdin")
    except OSError as error:
        if not is_needed:
            return ""
        raise UsageError("stdin cannot be read", why=error.strerror or str(error)) from error


def read_stdin(note: Callable[[str], None]) -> bytes:
    """Read all of stdin. `note` is called if that takes long. Raises OSError."""
    waiting = Timer(PATIENCE_S, note, [WAITING])
    waiting.daemon = True
    if not sys.stdin.isatty():
        waiting.start()
    try:
        return sys.stdin.buffer.read()
    finally:
        waiting.cancel()


def _is_prompt_file(source: str) -> bool:
    """Return whether a source is one file of plain text, which is added as it is."""
    from edgespec.chat.attachments import with_span
    from edgespec.chat.paths import is_several
    from edgespec.documents.reader import kind_of

    return with_span(source)[1] is None and not is_several(source) and not kind_of(source)


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        hint = "check its path; a relative one starts in the working folder" if is_missing else ""
        why = error.strerror or str(error)
        raise UsageError(f"prompt file '{file}' cannot be read", why=why, hint=hint) from error


def _decode(data: bytes, source: str) -> str:
    """Decode a text, without the newline with which editors and `echo` end it."""
    try:
        text = decoded(data)
    except UnicodeDecodeError as error:
        why = f"byte {error.start} is invalid"
        raise UsageError(f"the prompt from {source} is not UTF-8", why=why) from error
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
