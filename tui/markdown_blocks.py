"""The blocks of Markdown that are not plain text: code, tables and rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from textual.content import Content
from textual.strip import Strip
from textual.widgets.markdown import MarkdownFence

from edgespec.tui.lines import Block, Brush, Line, clickable

FILL = "on $surface"
TAB = 4
BETWEEN = Content.styled(" │ ", "dim")
NARROWEST = 8  # minimum cells of a column whose text is wrapped
Aligned = Literal["left", "center", "right"]


@dataclass(frozen=True, eq=False)
class Code(Block):
    """Source text in the colours of its language, below a line with the language and buttons.

    `number` counts the code blocks of the message from 1; a block without a number has no buttons. A block that
    `continues` is a later part of a long code block.
    """

    code: str
    language: str
    number: int = 0
    continues: bool = False

    def lines(self, brush: Brush, width: int) -> list[Line]:
        content = MarkdownFence.highlight(
            self.code.expandtabs(TAB), self.language or "text", brush.is_ansi, brush.is_dark
        )
        lines = brush.wrap(content, width, FILL)
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
