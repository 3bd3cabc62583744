"""Read lines, from a terminal with history and completion if the readline library is available, and what they make."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from edgespec.errors import UsageError
from edgespec.files.paths import data_dir

try:
    import readline
except ImportError:  # Windows: its console edits lines and keeps their history by itself
    readline = None  # type: ignore[assignment]

KEPT_LINES = 1000
FILE = "chat_history"
PROMPT, MORE, QUOTES = ">>> ", "... ", '"""'
PASTE, PASTED = "\x1b[200~", "\x1b[201~"  # the marks that a terminal puts around a paste, if it is asked to
MARKS_ON, MARKS_OFF = "\x1b[?2004h", "\x1b[?2004l"


class LineEditor:
    """Lines typed by a person. `complete` returns the continuations of a line's beginning; lines are saved for the next
    time only if it `remembers`.

    The lines of a paste are one text. GNU readline collects them itself. Other editors return them one by one with the
    terminal's marks in them, which libedit only lets through as quoted input. Windows' console has no such marks.
    """

    def __init__(self, complete: Callable[[str], Sequence[str]], *, remembers: bool) -> None:
        self._complete, self._remembers = complete, remembers
        self._found: Sequence[str] = ()
        is_capable = os.environ.get("TERM") != "dumb" and os.name != "nt"
        self._asks_for_marks = is_capable
        if readline is None:
            return
        self._file = data_dir() / FILE
        with suppress(OSError):
            readline.read_history_file(self._file)
        readline.set_history_length(KEPT_LINES)
        readline.set_completer_delims("\n")
        readline.set_completer(self._completion)
        with_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if with_libedit else "tab: complete")
        if with_libedit:
            for mark in ("[200~", "[201~"):
                readline.parse_and_bind(rf'bind -s "\e{mark}" "^V^[{mark}"')
        elif is_capable:  # Python turns this off
            readline.parse_and_bind("set enable-bracketed-paste on")
            self._asks_for_marks = False

    def read(self, prompt: str) -> str:
        """One line, or all lines of a paste. Raises EOFError at the end of input, KeyboardInterrupt for Ctrl-C."""
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
        """Ask the terminal to put marks around a paste, or not to."""
        if self._asks_for_marks and sys.stdout is not None and sys.stdout.isatty():
            sys.stdout.write(sequence)
            sys.stdout.flush()

    def put(self, text: str) -> bool:
        """Prefill the next line with this text; False if that is not possible."""
        if readline is None or "\n" in text:
            return False
        readline.set_startup_hook(lambda: readline.insert_text(text))
        return True

    def save(self) -> None:
        """Save the lines for the next time; errors are ignored."""
        if readline is not None and self._remembers:
            with suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(self._file)

    def _completion(self, text: str, state: int) -> str | None:
        if state == 0:
            self._found = self._complete(text)
        return self._found[state] if state < len(self._found) else None


def inputs_of(read_line: Callable[[str], str | None]) -> Iterator[str]:
    """Messages and commands: lines, or blocks between lines of three double quotes. `read_line` returns the next line
    for a prompt, None at the end."""
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


def piped_line() -> str | None:
    """The next line of stdin, None at the end. Raises UsageError for other text than UTF-8."""
    data = sys.stdin.buffer.readline() if sys.stdin is not None else b""
    try:
        return data.decode("utf-8-sig").rstrip("\r\n") if data else None
    except UnicodeDecodeError as error:
        raise UsageError("piped input is not UTF-8", why=str(error)) from error
