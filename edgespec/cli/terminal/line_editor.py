"""Read lines from a terminal: with history and completion if the readline library is available."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from edgespec.files.paths import data_dir

try:
    import readline
except ImportError:  # Windows: its console edits lines and keeps their history by itself
    readline = None  # type: ignore[assignment]

KEPT_LINES = 1000
FILE = "chat_history"


class LineEditor:
    """Lines typed by a person. `complete` returns the continuations of a line's beginning; lines are saved for the next
    time only if it `remembers`."""

    def __init__(self, complete: Callable[[str], Sequence[str]], *, remembers: bool) -> None:
        self._complete, self._remembers = complete, remembers
        self._found: Sequence[str] = ()
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

    def read(self, prompt: str) -> str:
        """One line. Raises EOFError at the end of input, KeyboardInterrupt for Ctrl-C."""
        try:
            return input(prompt)
        finally:
            if readline is not None:
                readline.set_startup_hook(None)

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
