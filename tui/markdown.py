"""Markdown as blocks, also while it streams.

Line breaks are kept and HTML is shown as text: nothing that the model wrote is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from markdown_it.token import Token
from textual.content import Content, Span
from textual.strip import Strip
from textual.style import Style
from textual.widgets.markdown import MarkdownFence

from edgespec.text.code_blocks import parser
from edgespec.tui.lines import Block, Brush, Line, WrappedText, clickable

FILL = "on $surface"
TAB = 4
BETWEEN = Content.styled(" │ ", "dim")
NARROWEST = 8  # minimum cells of a column whose text is wrapped
Aligned = Literal["left", "center", "right"]
LONG_FENCE = 40  # lines after which the first half of an unfinished code block is final
BULLETS = "•◦▪"
HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold $text-primary"}
INLINE = {"em_open": "italic", "strong_open": "bold", "s_open": "strike"}


@dataclass(frozen=True, eq=False)
class Code(Block):
    """Source text in the colours of its language, below a line with the language and buttons.

    `number` counts the code blocks of the message from 1; a block without a number has no buttons. A block that
    `continues` is a later part of a long code block. `marks` are laid over the colours.
    """

    code: str
    language: str
    number: int = 0
    continues: bool = False
    marks: tuple[Span, ...] = ()

    @property
    def shown(self) -> str:
        """The code as it is shown."""
        return self.code.expandtabs(TAB)

    def lines(self, brush: Brush, width: int) -> list[Line]:
        content = MarkdownFence.highlight(self.shown, self.language or "text", brush.is_ansi, brush.is_dark)
        lines = brush.wrap(content.add_spans(self.marks), width, FILL)
        if not self.continues:
            title = brush.draw(self._title(width), width, FILL)[0].crop(0, width)
            lines.insert(0, Line(title, None))
        return [replace(line, strip=brush.pad(line.strip, width, FILL)) for line in lines]

    def _title(self, room: int) -> Content:
        buttons = {"save": "save_code", f"copy [{self.number}]": "copy_code"} if self.number else {}
        offers = Content("  ").join(clickable(text, f"{action}({self.number})") for text, action in buttons.items())
        name = Content(self.language[: max(0, room - offers.cell_length - 2)] or " ")
        gap = " " * max(1, room - name.cell_length - offers.cell_length)
        return Content.assemble(name, gap, offers).stylize("dim")


@dataclass(frozen=True, eq=False)
class Rule(Block):
    """A horizontal line."""

    def lines(self, brush: Brush, width: int) -> list[Line]:
        return brush.wrap(Content("─" * width), width, "dim")


@dataclass(frozen=True, eq=False)
class Table(Block):
    """A table. The first row has the titles; `aligned` has a word for each column."""

    rows: tuple[tuple[Content, ...], ...]
    aligned: tuple[Aligned, ...]

    def lines(self, brush: Brush, width: int) -> list[Line]:
        widths = _widths([max(cell.cell_length for cell in column) for column in zip(*self.rows, strict=True)], width)
        return [*map(Line, self._in_columns(brush, widths))] if widths else self._as_fields(brush, width)

    def _in_columns(self, brush: Brush, widths: list[int]) -> list[Strip]:
        between = brush.draw(BETWEEN, 3)[0]
        lines: list[Strip] = []
        for number, row in enumerate(self.rows):
            cells = [brush.draw(cell, width, "" if number else "bold") for cell, width in zip(row, widths, strict=True)]
            for parts in zip_longest(*cells, fillvalue=Strip([])):
                placed = zip(parts, widths, self.aligned, strict=True)
                padded = [_placed(brush, part, width, aligned) for part, width, aligned in placed]
                lines.append(Strip.join([piece for part in padded for piece in (between, part)][1:]))
            if not number:
                rule = "─┼─".join("─" * width for width in widths)
                lines += brush.draw(Content(rule), len(rule), "dim")
        return lines

    def _as_fields(self, brush: Brush, room: int) -> list[Line]:
        titles, *rows = self.rows
        lines: list[Line] = []
        for number, row in enumerate(rows):
            for title, cell in zip(titles, row, strict=True):
                label = Content.assemble(title.stylize("bold"), ": ")
                lines += brush.wrap(Content.assemble(label, cell), room)
            if number < len(rows) - 1:
                lines += brush.wrap(Content("─" * min(room, 3)), room, "dim")
        return lines


def _placed(brush: Brush, part: Strip, width: int, aligned: Aligned) -> Strip:
    """Return a line of a cell, aligned in its column."""
    free = width - part.cell_length
    before = {"left": 0, "center": free // 2, "right": free}[aligned]
    return brush.pad(Strip.join([brush.pad(Strip([]), before), part]) if before else part, width)


def _widths(natural: list[int], room: int) -> list[int]:
    """Return the widths of columns, the widest ones reduced until all fit; [] if they would be too narrow."""
    room -= BETWEEN.cell_length * (len(natural) - 1)
    widths = [max(1, width) for width in natural]
    while sum(widths) > room:
        widest = widths.index(max(widths))
        if widths[widest] <= NARROWEST:
            return []
        widths[widest] -= 1
    return widths


def markdown(text: str) -> list[Block]:
    """Return the blocks of a whole text."""
    return [placed.block for placed in _Walk(text).placed]


class GrowingMarkdown:
    """The blocks of a streaming text. Blocks that further text cannot change are final, and not parsed again.

    They may differ in details from `markdown` of the whole text: numbers and gaps of lists, references.
    """

    def __init__(self) -> None:
        self._tail = ""  # the text that is not final
        self._n_settled = 0
        self._has_gap = False  # whether an empty line precedes the tail
        self._in_code = False  # the tail begins with the next part of a code block

    def append(self, text: str) -> tuple[int, list[Block]]:
        """Add text; return how many of the previous blocks stay, and the blocks after them."""
        self._tail += text
        keep, placed = self._n_settled, _Walk(self._tail).placed
        if not placed:
            return keep, []
        first = replace(placed[0].block, has_gap=self._has_gap)
        if isinstance(first, Code):
            first = replace(first, continues=self._in_code)
        placed[0] = replace(placed[0], block=first)
        blocks = [part.block for part in placed]
        n_complete = self._tail.count("\n")  # the last line may still become something else
        last = max((index for index, part in enumerate(placed) if part.begins and part.line < n_complete), default=0)
        if last:
            self._in_code = False
            self._settle(last, blocks[last].has_gap, self._tail.split("\n", placed[last].line)[-1])
        elif len(blocks) == 1 and isinstance(code := blocks[0], Code) and code.code.count("\n") > LONG_FENCE:
            opening, body = self._tail.split("\n", 1)
            if opening.lstrip().startswith(("```", "~~~")):
                n = LONG_FENCE // 2
                lines = code.code.split("\n")
                rest = replace(code, code="\n".join(lines[n:]), has_gap=False, continues=True)
                blocks = [replace(code, code="\n".join(lines[:n])), rest]
                self._in_code = True
                self._settle(1, False, opening + "\n" + body.split("\n", n)[-1])
        return keep, blocks

    def _settle(self, n_blocks: int, has_gap: bool, tail: str) -> None:
        self._n_settled += n_blocks
        self._has_gap, self._tail = has_gap, tail


@dataclass(frozen=True, slots=True)
class _Placed:
    """A block and its line in the text. If it `begins` a top-level block, the text before it is complete."""

    block: Block
    line: int
    begins: bool


@dataclass(slots=True)
class _Frame:
    """The beginnings of the lines of a list item or a quotation."""

    first: str
    rest: str
    is_open: bool = False  # whether its first line was added


class _Walk:
    """Collects the blocks of a text from its Markdown tokens."""

    def __init__(self, text: str) -> None:
        self.placed: list[_Placed] = []
        self._frames: list[_Frame] = []
        self._depth = 0  # of nested lists
        self._list_begins = False
        self._is_tight = False
        self._style = ""
        self._begins = False
        self._line = 0  # the first line of the last top-level block or item
        self._rows: list[list[Content]] | None = None  # rows of the current table
        self._aligned: list[Aligned] = []  # alignments of its columns
        for token in parser.parse(text):
            self._take(token)

    def _take(self, token: Token) -> None:
        kind = token.type
        if token.map is not None and (token.level == 0 or (kind == "list_item_open" and token.level == 1)):
            self._line, self._begins = token.map[0], True
        if self._rows is not None:
            self._take_of_table(self._rows, token)
        elif kind in ("bullet_list_open", "ordered_list_open"):
            self._list_begins = not self._depth
            self._depth += 1
        elif kind in ("bullet_list_close", "ordered_list_close"):
            self._depth -= 1
        elif kind == "list_item_open":
            mark = f"{token.info}. " if token.info else f"{BULLETS[(self._depth - 1) % len(BULLETS)]} "
            self._frames.append(_Frame(mark, " " * len(mark)))
        elif kind == "blockquote_open":
            self._frames.append(_Frame("▌ ", "▌ "))
        elif kind in ("list_item_close", "blockquote_close"):
            if not self._frames[-1].is_open:
                self._add(WrappedText(Content("")), is_tight=self._is_tight)
            self._frames.pop()
        elif kind == "paragraph_open":
            self._is_tight, self._style = token.hidden, ""
        elif kind == "heading_open":
            self._is_tight, self._style = False, HEADINGS.get(token.tag, "bold")
        elif kind == "inline":
            self._add(WrappedText(_inline(token), self._style), is_tight=self._is_tight)
        elif kind in ("fence", "code_block"):
            language = next(iter(token.info.split()), "")
            self._add(Code(token.content.removesuffix("\n"), language), margin="  ")
        elif kind == "hr":
            self._add(Rule())
        elif kind == "table_open":
            self._rows, self._aligned = [], []

    def _take_of_table(self, rows: list[list[Content]], token: Token) -> None:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_inline(token))
        elif token.type == "th_open":
            style = str(token.attrs.get("style", ""))  # text-align:right
            self._aligned.append("right" if "right" in style else "center" if "center" in style else "left")
        elif token.type == "table_close":
            self._add(Table(tuple(map(tuple, rows)), tuple(self._aligned)))
            self._rows = None

    def _add(self, block: Block, margin: str = "", *, is_tight: bool = False) -> None:
        first = "".join(frame.rest if frame.is_open else frame.first for frame in self._frames) + margin
        rest = "".join(frame.rest for frame in self._frames) + margin
        for frame in self._frames:
            frame.is_open = True
        has_gap = bool(self.placed) and (not is_tight or self._list_begins)
        block = replace(block, first=first, rest=rest, has_gap=has_gap)
        self.placed.append(_Placed(block, self._line, self._begins))
        self._begins = self._list_begins = False


def _inline(token: Token) -> Content:
    """Return the text of a paragraph with emphasis, code and links."""
    text, length = [], 0
    spans: list[Span] = []
    open_styles: list[tuple[int, str | Style]] = []
    for child in token.children or []:
        if child.type in ("softbreak", "hardbreak"):
            piece = "\n"
        elif child.type == "image":
            piece = f"[image: {child.content}]"
        else:
            piece = child.content if child.type in ("text", "code_inline") else ""
        if child.type in INLINE:
            open_styles.append((length, INLINE[child.type]))
        elif child.type == "link_open":
            action = f"link({str(child.attrs.get('href', ''))!r})"
            open_styles.append((length, Style(underline=True) + Style.from_meta({"@click": action})))
        elif child.type.endswith("_close") and open_styles:
            start, style = open_styles.pop()
            spans.append(Span(start, length, style))
        elif child.type == "code_inline":
            spans.append(Span(length, length + len(piece), "$text-warning"))
        text.append(piece)
        length += len(piece)
    return Content("".join(text), spans=spans)
