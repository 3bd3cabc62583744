"""All output of the program: answers and results on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import io
import logging
import math
import os
import re
import shutil
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from functools import partial
from itertools import zip_longest
from time import monotonic
from typing import TYPE_CHECKING, TextIO

import click

from edgespec.cli.terminal.background import READER_GONE, BackgroundStream
from edgespec.errors import EdgespecError
from edgespec.text.printable import printable, wrapped
from edgespec.text.strict_json import json_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edgespec.cli.terminal.drawn_answer import DrawnAnswer

WIDEST = 100  # columns of text that is easy to read
LEAST_WRAPPED = 32  # columns of text in a table that is wrapped
LOGGED_EVERY_S = 30.0  # between lines of progress if stderr is not a terminal
_ASCII = str.maketrans({"·": "|", "…": "..."})

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class StdoutClosed(Exception):  # noqa: N818 - nothing went wrong
    """The reader of stdout has closed it (`| head -1`), so there is no reason to continue."""


class Output:
    """The two streams of the process.

    `quiet` drops notes and progress. `verbose` logs all messages of the program and of llama.cpp to stderr; False logs
    only warnings, and None leaves logging as it is.
    """

    def __init__(self, *, quiet: bool, verbose: bool | None = None) -> None:
        self.quiet = quiet
        self._stdout, self._stderr = sys.stdout, sys.stderr
        self._newlines = 0
        self._answered = False
        self._progress = 0
        self._logged_s: float | None = None
        if verbose is not None:
            self.log_to_stderr(verbose=verbose)
        reconfigure = getattr(self._stdout, "reconfigure", None)
        if reconfigure is not None and self._stdout.isatty():
            reconfigure(errors="replace")
        elif reconfigure is not None:
            reconfigure(encoding="utf-8", errors="replace", newline="\n")

    @property
    def stderr_is_terminal(self) -> bool:
        return _is_terminal(self._stderr)

    def new_answer(self, *, draws: bool = True, thinks: bool = False, for_reader: bool = False) -> ShownAnswer:
        """Return an answer to add text to. On a terminal it `draws` Markdown, `for_reader` so that screen readers can
        read it. With `thinks` the text may begin with reasoning."""
        encoding = getattr(self._stdout, "encoding", None) or ""
        if not draws or self._stdout is None or not self._stdout.isatty() or "utf" not in encoding.lower():
            return ShownAnswer(self)
        from edgespec.cli.terminal.drawn_answer import DrawnAnswer, Look

        look = Look.of(has_colour=_has_colour(self._stdout), for_reader=for_reader)
        return ShownAnswer(self, DrawnAnswer(partial(self.answer, as_is=True), look, thinks=thinks))

    def answer(self, text: str, *, as_is: bool = False) -> None:
        """Append to the answer. Newlines at its end are held back, so that it ends with exactly one. A terminal gets no
        control characters unless the text is shown `as_is`."""
        body = text.rstrip("\n")
        trailing = len(text) - len(body)
        self._answered = self._answered or text != ""
        if body:
            self._write("\n" * self._newlines + body, as_is=as_is)
            self._newlines = 0
        self._newlines += trailing

    def end_answer(self) -> None:
        """End the last line of the answer; an empty answer writes nothing."""
        if self._answered:
            self._write("\n")
        self._answered, self._newlines = False, 0

    def line(self, text: str) -> None:
        """Print a line of a command's result."""
        self._write(text + "\n")

    def excerpt(self, label: str, text: str, begin: str, end: str) -> None:
        """Print text of which the parts between `begin` and `end` are highlighted on a terminal with colours."""
        parts = [printable(part) for part in re.split(f"{begin}(.*?){end}", text)]
        if _has_colour(self._stdout):  # every second part was between the marks
            parts[1::2] = [click.style(part, bold=True, underline=True) for part in parts[1::2]]
        self._write(printable(label) + "".join(parts) + "\n", as_is=True)

    def say(self, text: str) -> None:
        """Print lines for people, wrapped to the terminal's width."""
        is_terminal = _is_terminal(self._stdout)
        self.line(wrapped(printable(text), shutil.get_terminal_size().columns) if is_terminal else text)

    def show(self, renderable: RenderableType, *, aside: bool = False) -> None:
        """Print a table or the like as wide as the terminal; `aside` on stderr."""
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=shutil.get_terminal_size().columns, color_system=None).print(renderable)
        lines = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
        (self.aside if aside else self.line)(in_options(lines))

    def facts(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print texts with labels in front, as wide as the terminal, but no wider than is readable. Words, such as
        paths, stay whole; a non-breaking space is U+00A0."""
        indent = max(len(label) for label, _ in rows) + 2
        columns = max(min(WIDEST, shutil.get_terminal_size().columns), indent + 20)
        for label, text in rows:
            line = wrapped(printable(f"{label:{indent}}{text}".replace("\n", " ")).rstrip(), columns, indent)
            self.line(line.replace("\xa0", " "))

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        right: Collection[str] = (),
        least: Sequence[str] = (),
        wraps: str = "",
    ) -> None:
        """Print a table. `right` names right-aligned columns. No cell is cut, so that names can be copied, and none is
        wrapped but those of the column `wraps`, on a terminal that is too narrow.

        Columns without any text are left out, and on a narrow terminal those in `least`, the first ones first, with a
        note.
        """
        from rich.cells import cell_len

        columns = {name: cells for name, *cells in zip(header, *rows, strict=True) if any(cells)}
        widths = {name: max(map(cell_len, (name, *cells))) for name, cells in columns.items()}
        widest = widths.get(wraps, 0)
        widths |= {wraps: min(widest, LEAST_WRAPPED)} if widest else {}
        room, left_out = shutil.get_terminal_size().columns if _is_terminal(self._stdout) else math.inf, []
        for name in least:
            if name in columns and sum(widths.values()) + 2 * (len(widths) - 1) > room:
                left_out.append(name)
                del columns[name], widths[name]
        if wraps in widths:
            others = sum(widths.values()) - widths[wraps] + 2 * (len(widths) - 1)
            widths[wraps] = int(max(widths[wraps], min(widest, room - others)))
        lines = []
        for row in zip(*((name, *cells) for name, cells in columns.items()), strict=True):
            wrapped_cells = [
                wrapped(text, widths[name]).split("\n") if name == wraps else [text]
                for name, text in zip(columns, row, strict=True)
            ]
            for part in zip_longest(*wrapped_cells, fillvalue=""):
                cells = []
                for text, (name, width) in zip(part, widths.items(), strict=True):
                    gap = " " * (width - cell_len(text))
                    cells.append(gap + text if name in right else text + gap)
                lines.append("  ".join(cells).rstrip())
        self.line("\n".join([lines[0], "─" * max(map(cell_len, lines)), *lines[1:]]))
        if left_out:
            self.note(f"a wider terminal also shows: {', '.join(left_out)}")

    def json(self, value: object) -> None:
        """Print a JSON value on one line."""
        self._write(json_line(_finite(value)) + "\n", as_is=True)

    def note(self, text: str, *, as_is: bool = False) -> None:
        """Show a message, unless quiet. Settings that it names have the names of their options, unless the message has
        words of the user, and is shown `as_is`."""
        if not self.quiet:
            self.aside(f"note: {text if as_is else in_options(text)}")

    def warn(self, text: str) -> None:
        """Show a warning, also if quiet."""
        self.aside(f"warning: {in_options(text)}")

    def interject(self, text: str) -> None:
        """Show a note in the middle of an answer. If one terminal shows both, the note begins a new line."""
        if self._answered and not self.quiet and _is_terminal(self._stdout) and self.stderr_is_terminal:
            self._emit("\n")
        self.note(text)

    def aside(self, text: str) -> None:
        """Show a dimmed line on stderr."""
        shown = self._fitting(printable(text))
        self._tell((click.style(shown, dim=True) if _has_colour(self._stderr) else shown) + "\n")

    def explain(self, text: str) -> None:
        """Show lines on stderr that the user needs for the answer to a question, also if quiet."""
        self._tell(printable(text) + "\n")

    def ask(self, question: str) -> str:
        """Show a question on stderr, and return the line that the user types. Raises Abort at the end of the input.

        Lines that were typed before are dropped: they answered something else, or nothing.
        """
        _drop_typed()
        self._tell(self._fitting(printable(question)) + " ")
        if not (line := sys.stdin.readline()):
            self._tell("\n")
            raise click.Abort
        return line.strip()

    def error(self, message: str, *, hint: str = "", trace: bool = False) -> None:
        """Report an error; with `trace` and -v also its traceback."""
        if trace and logging.getLogger("edgespec").isEnabledFor(logging.DEBUG):
            self._tell(traceback.format_exc())
        shown = printable(f"edgespec: {in_options(message)}") + (f"\n  {hint}" if hint else "")
        self._tell(self._fitting(shown) + "\n")

    def progress(self, what: str, done: float | None) -> None:
        """Show progress, from 0 to 1 if known. On a terminal the next output erases the line; into a file, a line is
        written from time to time."""
        if self.quiet:
            return
        text = printable(what if done is None else f"{what} {done:4.0%}")
        if self.stderr_is_terminal:
            text = text.ljust(self._progress)
            self._emit("\r" + text)
            self._progress = len(text)
        elif self._logged_s is None:
            self._logged_s = monotonic()
        elif monotonic() - self._logged_s >= LOGGED_EVERY_S:
            self._logged_s = monotonic()
            self._emit(text + "\n")

    def end_progress(self) -> None:
        """Erase the line of `progress`."""
        self._clear_progress()
        self._logged_s = None

    @contextmanager
    def showing_progress(self) -> Iterator[None]:
        """Erase the line of `progress` when the block ends."""
        try:
            yield
        finally:
            self.end_progress()

    def control(self, sequence: str) -> bool:
        """Send a control sequence to the terminal. Return whether there is a terminal that understands it."""
        if self.stderr_is_terminal:
            self._tell(sequence)
        return self.stderr_is_terminal

    @contextmanager
    def in_background(self, *, as_json: bool) -> Iterator[None]:
        """Write the output of this block in a thread, so that an unread, closed or full stream does not stop the
        program. Lost lines are counted, and reported in JSON on stdout if `as_json`."""

        def lost(n: int) -> str:
            return f"warning: {n} lines were not written here, because nobody read them or the disk was full\n"

        def lost_events(n: int) -> str:
            return json_line({"event": "dropped", "lines": n}) + "\n"

        def failed(why: str) -> None:
            self.warn(
                f"stdout {f'cannot be written now ({why})' if why else 'was closed: nothing more is shown there'}"
            )

        before = self._stdout, self._stderr
        with ExitStack() as ends:
            self._stdout = ends.enter_context(BackgroundStream(self._stdout, lost_events if as_json else lost, failed))
            if self._stderr is not None:
                self._stderr = ends.enter_context(BackgroundStream(self._stderr, lost, lambda why: None))
            self._log_there()
            try:
                with redirect_stderr(self._stderr):  # for tracebacks of other libraries
                    yield
            finally:
                self._stdout, self._stderr = before
                self._log_there()

    def log_to_stderr(self, *, verbose: bool) -> None:
        """Show warnings of the program, or with `verbose` all messages of the program and of llama.cpp."""
        handler = logging.StreamHandler(self._stderr)
        if verbose:
            handler.setFormatter(logging.Formatter("%(relativeCreated)6d ms %(name)s: %(message)s"))
        else:
            handler.setFormatter(logging.Formatter("warning: %(message)s"))
            handler.addFilter(lambda record: record.name != "edgespec.llama")  # llama.cpp's messages
        logger = logging.getLogger("edgespec")
        logger.handlers[:] = [handler]
        logger.setLevel(logging.DEBUG if verbose else logging.ERROR if self.quiet else logging.WARNING)

    def _log_there(self) -> None:
        """Let the log follow stderr."""
        for handler in logging.getLogger("edgespec").handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(self._stderr)

    def _clear_progress(self) -> None:
        if self._progress:
            width, self._progress = self._progress, 0
            self._emit("\r" + " " * width + "\r")

    def _write(self, text: str, *, as_is: bool = False) -> None:
        self._clear_progress()
        if self._stdout is None:
            raise StdoutClosed
        try:
            self._stdout.write(text if as_is or not self._stdout.isatty() else printable(text))
            self._stdout.flush()
        except (OSError, ValueError) as error:
            _discard(self._stdout)
            if isinstance(error, OSError) and error.errno not in READER_GONE:
                raise EdgespecError("the output cannot be written", why=error.strerror or str(error)) from error
            raise StdoutClosed from None

    def _fitting(self, text: str) -> str:
        """Return `text` wrapped to the terminal's width."""
        return wrapped(text, shutil.get_terminal_size().columns) if self.stderr_is_terminal else text

    def _tell(self, text: str) -> None:
        self._clear_progress()
        self._emit(text)

    def _emit(self, text: str) -> None:
        if self._stderr is None:
            return
        try:
            self._stderr.write(self._fit(text))
            self._stderr.flush()
        except (OSError, ValueError):  # cannot be reported without stderr
            _discard(self._stderr)

    def _fit(self, text: str) -> str:
        """Return `text` in characters that stderr can show."""
        encoding = getattr(self._stderr, "encoding", None) or "ascii"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
        return text


def in_options(message: str) -> str:
    """Return a message in which settings have the names of their options."""
    if "`" not in message:
        return message
    from edgespec.settings import with_options  # which most messages do not need

    return with_options(message)


class ShownAnswer:
    """An answer that is shown while it streams: drawn, or as it is."""

    def __init__(self, output: Output, drawn: DrawnAnswer | None = None) -> None:
        self._output, self._drawn = output, drawn

    def add(self, text: str) -> None:
        """Show more of the answer."""
        if self._drawn is None:
            self._output.answer(text)
        else:
            self._drawn.add(text)

    def interject(self, text: str) -> None:
        """Show a note in the middle of the answer."""
        self._output.interject(text)
        if self._drawn is not None:
            self._drawn.restart_line()

    def end(self) -> None:
        """Show the rest of the answer, and end its last line."""
        if self._drawn is not None:
            self._drawn.end()
        self._output.end_answer()


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether this is a terminal that understands control sequences."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _has_colour(stream: TextIO | None) -> bool:
    return not os.environ.get("NO_COLOR") and _is_terminal(stream)


def _drop_typed() -> None:
    """Drop what the user has typed and nobody has read."""
    with suppress(ImportError, OSError):  # Windows has no termios; it keeps few keys
        import termios

        with suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _finite(value: object) -> object:
    """Return `value` with null for infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def stdout_failure(error: Exception) -> str | None:
    """Return the reason if an error comes from a write to stdout, such as click's help, else None. An error of a file
    names the file. The rest of the output is dropped: the interpreter would try to write it again at its end."""
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _FULL:
        return None
    if sys.stdout is not None:
        _discard(sys.stdout)
    return error.strerror


def _discard(stream: TextIO) -> None:
    """Drop buffered output, about which the interpreter would complain at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
