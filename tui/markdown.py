"""Markdown as blocks, also while it streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

from textual.content import Content, Span
from textual.strip import Strip
from textual.style import Style
from textual.widgets.markdown import MarkdownFence

from edgespec.text.markdown import (
    WEB_ADDRESS,
    Aligned,
    Fence,
    Formula,
    Mark,
    Paragraph,
    Part,
    Piece,
    Rows,
    column_widths,
    parts_of,
)
from edgespec.tui.lines import Block, Brush, Line, WrappedText, clickable

FILL = "on $surface"
TAB = 4
BETWEEN = Content.styled(" │ ", "dim")
LONG_FENCE = 40  # lines after which the first half of an unfinished code block is final
LONG_ADDRESS = 60  # characters; of a longer address the beginning is shown
HEADINGS = {0: "", 1: "bold underline $text-primary", 2: "bold $text-primary"}
STYLES: dict[Mark, str] = {
    "emphasis": "italic",
    "strong": "bold",
    "strike": "strike",
    "code": "$text-warning",
    "formula": "$text-success",
    "address": "dim",
    "note": "$text-primary",
}
DIFFS = ("diff", "patch", "udiff")
DIFF_STYLES = {"+": "$text-success", "-": "$text-error", "@": "bold"}  # by the first character of a line


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
        lines = brush.wrap(self._coloured(brush).add_spans(self.marks), width, FILL)
        if not self.continues:
            title = brush.draw(self._title(width), width, FILL)[0].crop(0, width)
            lines.insert(0, Line(title, None))
        return [replace(line, strip=brush.pad(line.strip, width, FILL)) for line in lines]

    def _coloured(self, brush: Brush) -> Content:
        code = self.shown
        if self.language.lower() in DIFFS:
            return Content("\n").join(Content.styled(line, DIFF_STYLES.get(line[:1], "")) for line in code.split("\n"))
        return MarkdownFence.highlight(code, self.language or "text", brush.is_ansi, brush.is_dark)

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
class DrawnFormula(Block):
    """A formula on separate lines."""

    source: str

    def lines(self, brush: Brush, width: int) -> list[Line]:
        from edgespec.text.formulas import drawn_within  # most answers have none

        return brush.wrap(Content("\n".join(drawn_within(self.source, width))), width, STYLES["formula"])


@dataclass(frozen=True, eq=False)
class Table(Block):
    """A table. The first row has the titles; `aligned` has a word for each column."""

    rows: tuple[tuple[Content, ...], ...]
    aligned: tuple[Aligned, ...]

    def lines(self, brush: Brush, width: int) -> list[Line]:
        natural = [max(cell.cell_length for cell in column) for column in zip(*self.rows, strict=True)]
        widths = column_widths(natural, width)
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


def markdown(text: str) -> list[Block]:
    """Return the blocks of a whole text."""
    return [block_of(part) for part in parts_of(text)]


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
        keep, parts = self._n_settled, parts_of(self._tail)
        if not parts:
            return keep, []
        blocks = [block_of(part) for part in parts]
        first = replace(blocks[0], has_gap=self._has_gap)
        blocks[0] = replace(first, continues=self._in_code) if isinstance(first, Code) else first
        n_complete = self._tail.count("\n")  # the last line may still become something else
        last = max((index for index, part in enumerate(parts) if part.begins and part.line < n_complete), default=0)
        if last:
            self._in_code = False
            self._settle(last, blocks[last].has_gap, self._tail.split("\n", parts[last].line)[-1])
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


def block_of(part: Part) -> Block:
    """Return the block that shows a part of a text."""
    margin = "  " if isinstance(part, Fence | Formula) else ""
    return replace(_unplaced(part), first=part.first + margin, rest=part.rest + margin, has_gap=part.has_gap)


def _unplaced(part: Part) -> Block:
    match part:
        case Paragraph():
            return WrappedText(_content(part.pieces), HEADINGS.get(part.heading, "bold"))
        case Fence():
            return Code(part.code, part.language)
        case Formula():
            return DrawnFormula(part.source)
        case Rows():
            return Table(tuple(tuple(map(_content, row)) for row in part.rows), part.aligned)
    return Rule()


def _content(pieces: tuple[Piece, ...]) -> Content:
    """Return the text of a paragraph or a cell with its styles and links."""
    text, length = list[str](), 0
    spans: list[Span] = []
    for piece in pieces:
        shown = piece.text
        if "address" in piece.marks and len(shown) > LONG_ADDRESS:
            shown = f"{shown[:LONG_ADDRESS]}…)"
        end = length + len(shown)
        spans += [Span(length, end, STYLES[mark]) for mark in piece.marks if mark in STYLES]
        if piece.href:
            spans.append(Span(length, end, _linked(piece.href, is_underlined="address" not in piece.marks)))
        text.append(shown)
        length = end
    return Content("".join(text), spans=spans)


def _linked(href: str, *, is_underlined: bool) -> Style:
    """Return the style of a link: a click opens it, and so does the terminal if it knows links."""
    link = href if WEB_ADDRESS.fullmatch(href) else None
    return Style(underline=is_underlined, link=link) + Style.from_meta({"@click": f"link({href!r})"})
