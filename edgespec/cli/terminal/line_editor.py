"""Read messages and commands from a terminal, with history and completion if readline is available, or from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO

from edgespec.errors import UsageError
from edgespec.files.optional_files import optional
from edgespec.files.paths import data_dir
from edgespec.text.encodings import Utf8Lines

try:
    import readline
except ImportError:  # on Windows, whose console has line editing and history
    readline = None  # type: ignore[assignment]

KEPT_LINES = 1000
FILE = "chat_history"
PROMPT, MORE, QUOTES = ">>> ", "... ", '"""'
PASTE, PASTED = "\x1b[200~", "\x1b[201~"  # a terminal can put these around pasted text
MARKS_ON, MARKS_OFF = "\x1b[?2004h", "\x1b[?2004l"


class LineEditor:
    """Reads typed lines. `complete` returns the completions of a line's beginning. Lines are saved for the next
    start if it `remembers`.

    The lines of a paste are one text. GNU readline collects them itself. Other editors return them one by one, with the
    terminal's marks around the paste; libedit needs a binding that quotes the marks. Windows' console has no marks.
    """

    def __init__(self, complete: Callable[[str], Sequence[str]], *, remembers: bool) -> None:
        self._complete, self._remembers = complete, remembers
        self._found: Sequence[str] = ()
        is_capable = os.environ.get("TERM") != "dumb" and os.name != "nt"
        self._asks_for_marks = is_capable
        if readline is None:
            return
        self._file = data_dir() / FILE
        with optional(self._file):
            readline.read_history_file(self._file)
        readline.set_history_length(KEPT_LINES)
        readline.set_completer_delims("\n")
        readline.set_completer(self._completion)
        with_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if with_libedit else "tab: complete")
        if with_libedit:
            for mark in ("[200~", "[201~"):
                readline.parse_and_bind(rf'bind -s "\e{mark}" "^V^[{mark}"')
        elif is_capable:  # Python turns it off
            readline.parse_and_bind("set enable-bracketed-paste on")
            self._asks_for_marks = False

    def read(self, prompt: str) -> str:
        """Read a line, or all lines of a paste. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""
        self._ask_for_marks(MARKS_ON)
        try:
            text = input(prompt)
            while text.count(PASTE) > text.count(PASTED):
                text += f"\n{input(MORE)}"
            return text.replace(PASTE, "").replace(PASTED, "")
        finally:
            self._ask_for_marks(MARKS_OFF)
            if readline is not None:
                readline.set_startup_hook(None)

    def _ask_for_marks(self, sequence: str) -> None:
        """Turn the terminal's marks around pasted text on or off."""
        if self._asks_for_marks and sys.stdout is not None and sys.stdout.isatty():
            sys.stdout.write(sequence)
            sys.stdout.flush()

    def put(self, text: str) -> bool:
        """Prefill the next line. Return whether that is possible."""
        if readline is None or "\n" in text:
            return False
        readline.set_startup_hook(lambda: readline.insert_text(text))
        return True

    def save(self) -> None:
        """Save the lines for the next start; errors are ignored."""
        if readline is not None and self._remembers:
            with optional(self._file):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(self._file)

    def _completion(self, text: str, state: int) -> str | None:
        if state == 0:
            self._found = self._complete(text)
        return self._found[state] if state < len(self._found) else None


def inputs_of(read_line: Callable[[str], str | None]) -> Iterator[str]:
    """Yield messages and commands: lines, or blocks between lines of three double quotes. `read_line` reads the next
    line with a prompt, None at the end."""
    block: list[str] | None = None
    while (line := read_line(MORE if block is not None else PROMPT)) is not None:
        if block is not None:
            done = line.rstrip().endswith(QUOTES)
            block.append(line.rstrip().removesuffix(QUOTES) if done else line)
            if done:
                yield "\n".join(block).strip("\n")
                block = None
        elif line.startswith(QUOTES):
            rest = line.removeprefix(QUOTES)
            if rest.rstrip().endswith(QUOTES):
                yield rest.rstrip().removesuffix(QUOTES)
            else:
                block = [rest]
        elif line.strip():
            yield line
    if block:
        yield "\n".join(block).strip("\n")


@lru_cache(1)
def _lines_of(file: BinaryIO) -> Utf8Lines:
    """Return the lines of a file, which remember its encoding."""
    return Utf8Lines(file)


def piped_line() -> str | None:
    """Return the next line of stdin, or None at the end. Raises UsageError if the line is not UTF-8."""
    data = _lines_of(sys.stdin.buffer).readline() if sys.stdin is not None else b""
    try:
        return data.decode().rstrip("\r\n") if data else None
    except UnicodeDecodeError as error:
        raise UsageError("piped input is not UTF-8", why=str(error)) from error
