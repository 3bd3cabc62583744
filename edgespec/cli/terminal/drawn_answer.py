"""An answer on a terminal, drawn while it streams: Markdown with wrapped words, and reasoning in dim letters.

Nothing that was written is erased or changed: the screen stays in order if the terminal is resized, and its text can be
copied. A word appears as soon as it is complete, and a table or a formula when all of it is known.
"""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from rich.cells import cell_len

from edgespec.text.growing_markdown import GrowingText
from edgespec.text.markdown import WEB_ADDRESS, Fence, Formula, Mark, Paragraph, Part, Piece, Rows, Signs, column_widths
from edgespec.text.printable import printable
from edgespec.text.thinking import CLOSE, OPEN, ThinkingStream

WIDEST = 100  # columns of text that is easy to read
LEAST = 20  # columns, however narrow the terminal is
CONTEXT = 200  # lines of code before a new one that decide about its colours
SLOW_S, PAUSE = 0.01, 3  # if drawing takes longer than SLOW_S, the next drawing waits PAUSE times as long
RESET = "\x1b[0m"
STYLES: dict[Mark, str] = {
    "strong": "1",
    "emphasis": "3",
    "strike": "9",
    "code": "36",
    "formula": "35",
    "link": "4",
    "address": "2",
    "note": "2",
}
HEADINGS = {1: "1;4", 2: "1"}
DIM = "2"
TOKENS = {  # the style of code by the first of these kinds that its token is in
    "Comment": "2",
    "Keyword": "34",
    "Operator.Word": "34",
    "Literal.String": "32",
    "Literal.Number": "36",
    "Name.Function": "33",
    "Name.Class": "33",
    "Name.Decorator": "33",
    "Name.Builtin": "36",
    "Generic.Deleted": "31",
    "Generic.Inserted": "32",
    "Generic.Subheading": "1",
    "Generic.Heading": "1",
}
IDEOGRAPH = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003fffd]")  # of scripts without spaces
PIECE = re.compile(rf"\n|[^\S\n\xa0]+|\xa0+|{IDEOGRAPH.pattern}|(?:(?!{IDEOGRAPH.pattern})\S)+")
CLOSING = ("Po", "Pe", "Pf")  # categories of characters that do not begin a line
WITHOUT_LINKS = ("linux", "vt", "dumb")  # terminals that show the address of a link in the text


class Run(NamedTuple):
    """A text in one style, the numbers of a control sequence; `href` is the address of a link."""

    text: str
    style: str = ""
    href: str = ""


class Look(NamedTuple):
    """What a terminal shows: colours, lines and boxes, and links."""

    has_colour: bool
    has_lines: bool
    has_links: bool = False

    @classmethod
    def of(cls, *, has_colour: bool, for_reader: bool) -> Look:
        """Return the look of this terminal. A screen reader gets no lines, which it would read out."""
        terminal = os.environ.get("TERM", "")
        knows_links = os.name != "nt" or "WT_SESSION" in os.environ
        return cls(has_colour, not for_reader, has_colour and knows_links and not terminal.startswith(WITHOUT_LINKS))

    @property
    def signs(self) -> Signs:
        return Signs() if self.has_lines else Signs("-", "> ", ("[ ] ", "[x] "))


class Words:
    """Writes runs of text, wrapped at the width of the terminal."""

    def __init__(self, write: Callable[[str], None], look: Look, columns: Callable[[], int]) -> None:
        self._write, self.look, self._columns = write, look, columns
        self._has_begun = False
        self._rest = ""  # what precedes each next line
        self._column = 0
        self._word: list[Run] = []
        self._space: Run | None = None  # before the word
        self._style = Run("")  # the style that the terminal is in

    @property
    def width(self) -> int:
        """The columns of a line of text."""
        return min(WIDEST, self.room)

    @property
    def room(self) -> int:
        """The columns of the terminal."""
        return max(LEAST, self._columns())

    def begin(self, first: str, rest: str, *, has_gap: bool) -> None:
        """Begin a block, whose lines follow `first` and `rest`."""
        self.end()
        self._write("\n" * (self._has_begun + (has_gap and self._has_begun)))
        self._has_begun = True
        self._rest, self._column = rest, 0
        self._lead(first)

    def put(self, runs: Iterable[Run]) -> None:
        """Add text, whose last word may be continued."""
        for run in runs:
            for piece in PIECE.findall(run.text):
                if piece == "\n":
                    self.flush()
                    self._next_line()
                elif piece[0] != "\xa0" and piece.isspace():
                    self.flush()
                    self._space = run._replace(text=" ") if self._column > cell_len(self._rest) else None
                else:
                    is_script = IDEOGRAPH.match(piece) or (self._word and IDEOGRAPH.match(self._word[-1].text))
                    if is_script and unicodedata.category(piece[0]) not in CLOSING:
                        self.flush()
                    self._word.append(run._replace(text=piece))

    def line(self, runs: Iterable[Run], prefix: str = "") -> None:
        """Write a line as it is, after a line break if there is a line before it."""
        self.begin(prefix, "", has_gap=False)
        self.line_here(runs)

    def line_here(self, runs: Iterable[Run]) -> None:
        """Write the rest of a line as it is."""
        for run in runs:
            self._show(run)
        self.end_style()

    def flush(self) -> None:
        """Write the last word."""
        word, self._word = self._word, []
        if not word:
            return
        space, self._space = self._space, None
        length = cell_len("".join(run.text for run in word))
        if self._column + (space is not None) + length > self.width and self._column > cell_len(self._rest):
            self._next_line()
        elif space is not None:
            self._show(space)
            self._column += 1
        for run in word:
            self._show(run)
        self._column += length

    def end(self) -> None:
        """Write the last word, and end all styles."""
        self.flush()
        self.end_style()

    def restart_line(self) -> None:
        """Continue after something else was written below the text."""
        self._column, self._space = 0, None
        self._style = Run("")

    def _next_line(self) -> None:
        self.end_style()
        self._write("\n")
        self._column, self._space = 0, None
        self._lead(self._rest)

    def _lead(self, lead: str) -> None:
        if lead:
            self._show(Run(lead, DIM))
            self.end_style()
        self._column = cell_len(lead)

    def end_style(self) -> None:
        """End the style of the last word: the program may be killed before the next word."""
        if self._style != Run(""):
            self._show(Run(""))

    def _show(self, run: Run) -> None:
        """Write a text in its style."""
        style = run._replace(text="") if self.look.has_colour else Run("")
        if not (self.look.has_links and WEB_ADDRESS.fullmatch(style.href)):
            style = style._replace(href="")
        change = ""
        if style.href != self._style.href:
            change = f"\x1b]8;;{style.href}\x1b\\"
        if style.style != self._style.style:
            change += (RESET if self._style.style else "") + (f"\x1b[{style.style}m" if style.style else "")
        self._style = style
        if change or run.text:
            self._write(change + printable(run.text))


class DrawnAnswer:
    """Draws an answer while it streams. `write` gets text with control sequences; none of them is of the model.

    With `thinks`, the answer may begin with reasoning.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        look: Look,
        columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
        *,
        thinks: bool = False,
    ) -> None:
        self._write, self._written = write, list[str]()
        self._words = Words(self._written.append, look, columns)
        self._look = look
        self._thinking = ThinkingStream(trims=True) if thinks else None
        self._has_thought = self._is_thinking = False
        self._text = GrowingText(look.signs)
        self._has_answered = False
        self._waiting, self._rest_until_s = "", 0.0
        self._n_written = 0  # characters, or lines of code, of the part that is open
        self._is_open = False

    def add(self, text: str) -> None:
        """Draw more of the answer: at once, or a little later if the last drawing took long."""
        self._waiting += printable(text)
        started_s = perf_counter()
        if started_s < self._rest_until_s:
            return
        self._take_waiting()
        ended_s = perf_counter()
        if ended_s - started_s > SLOW_S:
            self._rest_until_s = ended_s + PAUSE * (ended_s - started_s)

    def _take_waiting(self) -> None:
        text, self._waiting = self._waiting, ""
        if self._thinking is None:
            self._answer(text)
        else:
            self._take(self._thinking.push(text))
        self._send()

    def end(self) -> None:
        """Draw what was held back."""
        self._take_waiting()
        if self._thinking is not None:
            self._take(self._thinking.end())
        for part in self._text.end():
            self._draw(part, is_complete=True)
        self._words.end()
        self._send()

    def restart_line(self) -> None:
        """Continue on a new line, after a note."""
        self._words.restart_line()

    def _send(self) -> None:
        self._words.end_style()
        if self._written:
            self._write("".join(self._written))
            self._written.clear()

    def _take(self, parts: Iterable[tuple[str, str]]) -> None:
        for kind, text in parts:
            if kind == "thinking":
                self._think(text)
            else:
                self._end_thought()
                self._answer(text)

    def _think(self, text: str) -> None:
        if not self._has_thought:
            self._has_thought = self._is_thinking = True
            if not self._look.has_colour:
                self._words.line([Run(OPEN)])
            self._words.begin("", "", has_gap=False)
        self._words.put([Run(text, DIM)])

    def _end_thought(self) -> None:
        if self._is_thinking and not self._look.has_colour:
            self._words.line([Run(CLOSE)])
        self._is_thinking = False

    def _answer(self, text: str) -> None:
        complete, growing = self._text.add(text)
        for part in complete:
            self._draw(part, is_complete=True)
        if growing is not None:
            self._draw(growing, is_complete=False)
            if self._text.ends_word:
                self._words.flush()

    # --- parts ----------------------------------------------------------------------------------------------------

    def _draw(self, part: Part, *, is_complete: bool) -> None:
        """Draw what is new of a part."""
        if isinstance(part, Paragraph):
            self._begin(part, "#" * part.heading + " " if part.heading and not self._look.has_colour else "")
            runs = self._runs(part.pieces, part.heading)
            self._words.put(_after(runs, self._n_written))
            self._n_written = max(self._n_written, sum(len(run.text) for run in runs))
        elif isinstance(part, Fence):
            self._draw_code(part, is_complete=is_complete)
        elif is_complete:
            self._draw_whole(part)
        if is_complete:
            self._words.flush()
            self._is_open, self._n_written = False, 0

    def _begin(self, part: Part, mark: str = "") -> None:
        if not self._is_open:
            self._open(part, part.first + mark, part.rest + " " * len(mark))

    def _open(self, part: Part, first: str, rest: str) -> None:
        has_gap = part.has_gap or (self._has_thought and not self._has_answered)
        self._words.begin(first, rest, has_gap=has_gap)
        self._is_open = self._has_answered = True

    def _draw_code(self, part: Fence, *, is_complete: bool) -> None:
        """Draw code without an indentation, which would be copied, and between its fences."""
        margin = part.rest if part.rest.strip() else ""
        if not self._is_open:
            self._open(part, part.first.rstrip() if part.first.strip() else margin, margin)
            opening = [Run(part.fence + part.language, DIM)]
            if part.first.strip() and not margin:  # the sign of a list item
                self._words.line(opening)
            else:
                self._words.line_here(opening)
        for line in _coloured(part, self._n_written) if part.code else ():
            self._words.line(line, margin + ("" if part.fence else "    "))
            self._n_written += 1
        if is_complete and part.fence:
            self._words.line([Run(part.fence, DIM)], margin)

    def _draw_whole(self, part: Part) -> None:
        room = self._words.room - len(part.rest)
        if isinstance(part, Formula):
            from edgespec.text.formulas import drawn_within, in_one_line  # most answers have none

            drawn = drawn_within(part.source, room - 2) if self._look.has_lines else (in_one_line(part.source),)
            lines = [[Run("  "), Run(line, STYLES["formula"])] for line in drawn]
        elif isinstance(part, Rows):
            lines = self._table(part, room)
        else:
            lines = [[Run("─" * min(room, self._words.width) if self._look.has_lines else "---", DIM)]]
        self._begin(part)
        for number, line in enumerate(lines):
            if number:
                self._words.line(line, part.rest)
            else:
                self._words.line_here(line)

    def _runs(self, pieces: Sequence[Piece], heading: int = 0) -> list[Run]:
        runs = list[Run]()
        for piece in pieces:
            styles = [HEADINGS.get(heading, "1")] if heading else []
            styles += [STYLES[mark] for mark in piece.marks]
            text = piece.text
            if "code" in piece.marks and not self._look.has_colour:
                text = f"`{text}`"
            runs.append(Run(text, ";".join(styles), piece.href))
        return runs

    # --- tables ---------------------------------------------------------------------------------------------------

    def _table(self, part: Rows, room: int) -> list[list[Run]]:
        rows = [[self._runs(cell) for cell in row] for row in part.rows]
        natural = [max(map(_width, column)) for column in zip(*rows, strict=True)]
        widths = column_widths(natural, room) if self._look.has_lines else []
        if not widths:
            return [*_fields(rows)]
        lines = list[list[Run]]()
        for number, row in enumerate(rows):
            cells = [_wrapped(cell if number else _bold(cell), width) for cell, width in zip(row, widths, strict=True)]
            for height in range(max(map(len, cells))):
                line = list[Run]()
                for cell, width, aligned in zip(cells, widths, part.aligned, strict=True):
                    text = cell[height] if height < len(cell) else []
                    free = width - _width(text)
                    before = {"left": 0, "center": free // 2, "right": free}[aligned]
                    line += [Run(" │ ", DIM)] if line else []
                    line += [Run(" " * before), *text, Run(" " * (free - before))]
                lines.append(_stripped(line))
            if not number:
                lines.append([Run("─┼─".join("─" * width for width in widths), DIM)])
        return lines


def _after(runs: Sequence[Run], start: int) -> Iterator[Run]:
    """Yield what is after the first `start` characters."""
    for run in runs:
        if start < len(run.text):
            yield run._replace(text=run.text[start:])
        start = max(0, start - len(run.text))


def _width(runs: Iterable[Run]) -> int:
    return cell_len("".join(run.text for run in runs))


def _bold(runs: Iterable[Run]) -> list[Run]:
    return [run._replace(style=f"{run.style};1".lstrip(";")) for run in runs]


def _stripped(line: list[Run]) -> list[Run]:
    """Return a line without the spaces at its end."""
    while line and not line[-1].text.strip():
        line.pop()
    return line


def _fields(rows: Sequence[Sequence[list[Run]]]) -> Iterator[list[Run]]:
    """Yield a line for each cell of a table, after the title of its column, with empty lines between the rows."""
    titles, *others = rows
    for number, row in enumerate(others):
        if number:
            yield []
        for title, cell in zip(titles, row, strict=True):
            yield [*_bold(title), Run(": "), *cell]


def _wrapped(runs: Sequence[Run], width: int) -> list[list[Run]]:
    """Return the lines of a cell."""
    lines: list[list[Run]] = [[]]
    column = 0
    for run in runs:
        for word in re.findall(r"\s+|\S+", run.text.replace("\n", " ")):
            while word:
                length = cell_len(word)
                if column + length > width and column:
                    lines.append([])
                    column = 0
                    word = word.lstrip()
                    continue
                n = len(word)
                while cell_len(word[:n]) > width:
                    n -= 1
                lines[-1].append(run._replace(text=word[: max(1, n)]))
                column += cell_len(word[: max(1, n)])
                word = word[max(1, n) :]
    return lines


def _coloured(part: Fence, start: int) -> list[list[Run]]:
    """Return the lines of a code block from `start` on in the colours of its language."""
    first = max(0, start - CONTEXT)
    code = part.code.split("\n")[first:]
    if len(code) <= start - first:
        return []
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(part.language or "text", stripnl=False)
    except ClassNotFound:
        return [[Run(line)] for line in code[start - first :]]
    lines: list[list[Run]] = [[]]
    for token, text in lexer.get_tokens("\n".join(code)):
        name = str(token).removeprefix("Token.")
        style = next((style for kind, style in TOKENS.items() if name.startswith(kind)), "")
        same_line, *others = text.split("\n")
        lines[-1].append(Run(same_line, style))
        lines += [[Run(line, style)] for line in others]
    return lines[start - first : -1]  # the lexer adds a line break
