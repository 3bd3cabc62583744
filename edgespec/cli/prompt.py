"""What a command is told: its prompt as an argument, a file or what is piped in, and the answer to a question."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path

import click

from edgespec.cli.types import first_invalid_byte
from edgespec.errors import UsageError


def read_prompt(argument: str | None, file: str | None) -> str:
    """The prompt's text. An argument wins over what is piped in; `-` stands for stdin. Raises UsageError."""
    if argument is not None and file is not None:
        raise UsageError("there are two prompts", why="one as an argument and one with --file", hint="give one of them")
    if argument == "-" or file == "-":
        return _from_stdin()
    if argument is not None:
        invalid = first_invalid_byte(argument)
        if invalid is not None:
            raise _not_utf8("the prompt", invalid)
        return argument
    if file is not None:
        return _decode(_read_file(Path(file)), file)
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("there is no prompt", hint="give one as an argument, with --file FILE, or through a pipe")
    return _from_stdin()


def agreed(question: str, *, yes: bool) -> bool:
    """Whether the user agrees to what deletes something, or did (`yes`). Raises UsageError where none can be asked."""
    if yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("nothing was deleted", why="there is no terminal to ask on", hint="give -y")
    return click.confirm(question, err=True)


def _from_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("there is no prompt", why="stdin is closed")
    return _decode(sys.stdin.buffer.read(), "stdin")


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"prompt file '{file}' cannot be read", why=error.strerror or str(error)) from error


def _decode(data: bytes, source: str) -> str:
    """UTF-8 without byte order mark and without the one newline with which editors and `echo` end a text."""
    text_bytes = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = text_bytes.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = ""
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            hint = "it looks like UTF-16: save it as UTF-8"
        raise _not_utf8(f"the prompt from {source}", error.start + len(data) - len(text_bytes), hint) from error
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _not_utf8(what: str, offset: int, hint: str = "") -> UsageError:
    return UsageError(f"{what} is not UTF-8", why=f"byte {offset} is invalid", hint=hint)
