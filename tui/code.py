"""A code block of an answer. Its lines are never wrapped; they scroll sideways."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.strip import Strip
from textual.widgets.markdown import MarkdownFence

from edgespec.tui.lines import Block, Brush, clickable

FILL = "on $surface"
LEFT, RIGHT = "\u2039", "\u203a"  # single angle quotes
TAB = 4


@dataclass(frozen=True, eq=False)
class Code(Block):
    """Source text in the colours of its language, below a line with the language and buttons.

    `number` counts the code blocks of the message from 1; a block without a number has no buttons. `offset` is the
    number of cells by which it is scrolled to the left. A block that `continues` is a later part of a long code block.
    """

    code: str
    language: str
    number: int = 0
    offset: int = 0
    continues: bool = False

    def lines(self, brush: Brush, width: int) -> list[Strip]:
        content = MarkdownFence.highlight(
            self.code.expandtabs(TAB), self.language or "text", brush.is_ansi, brush.is_dark
        )
        lines = [self._view(brush, line, width) for line in brush.draw(content, self.longest + 1, FILL)]
        if not self.continues:
            lines.insert(0, brush.pad(brush.draw(self._title(width), width, FILL)[0].crop(0, width), width, FILL))
        return lines

    @property
    def longest(self) -> int:
        """The length of the longest line, in cells."""
        return max(map(cell_len, self.code.expandtabs(TAB).split("\n")))

    def furthest(self, width: int) -> int:
        """Return the largest useful offset in a column of this width."""
        return max(0, self.longest - max(1, width - len(self.first)))

    def _view(self, brush: Brush, line: Strip, room: int) -> Strip:
        """Return the visible part of a line, with marks where it continues."""
        goes_on, began = line.cell_length > self.offset + room, self.offset > 0 and line.cell_length > 0
        left, right = (brush.draw(Content(mark), 1, f"{FILL} dim")[0] for mark in (LEFT, RIGHT))
        view = line.crop(self.offset + began, self.offset + room - goes_on)
        view = Strip.join([left, view]) if began else view
        return Strip.join([brush.pad(view, room - 1, FILL), right]) if goes_on else brush.pad(view, room, FILL)

    def _title(self, room: int) -> Content:
        buttons: list[Content] = []
        if self.number and self.longest > room:
            buttons += [clickable(LEFT, "scroll_code(-1)"), clickable(RIGHT, "scroll_code(1)")]
        if self.number:
            buttons.append(clickable("save", f"save_code({self.number})"))
            buttons.append(clickable(f"copy [{self.number}]", f"copy_code({self.number})"))
        offers = Content("  ").join(buttons)
        name = Content(self.language[: max(0, room - offers.cell_length - 2)] or " ")
        gap = " " * max(1, room - name.cell_length - offers.cell_length)
        return Content.assemble(name, gap, offers).stylize("dim")
