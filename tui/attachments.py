"""Attached files: chips above the field for messages, and folded lines in a message that was sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.style import Style
from textual.widget import Widget

from edgespec.chat.attachments import Attachment
from edgespec.text.printable import one_line
from edgespec.tui.lines import Block, Text
from edgespec.tui.live_answer import shown

MOST_LINES = 3  # of chips
CROSS = "\N{MULTIPLICATION SIGN}"
SHORTEST = 8  # characters of a name that is cut

Counts = Callable[[Attachment], int | None]


@dataclass
class RemoveFile(Message):
    """Do not send the attachment with this index."""

    index: int


@dataclass
class LeaveFiles(Message):
    """Go back to the field."""


class AttachmentBar(Widget, can_focus=True):
    """A chip for each attached file, with a cross to remove it, and a warning below them. Hidden without files.

    A click does not focus the chips: Backspace would remove a file then."""

    FOCUS_ON_CLICK = False
    DEFAULT_CSS = """
    AttachmentBar { display: none; height: auto; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete,backspace,x", "remove_chosen", "Remove", key_display="Del", id="files.remove"),
        Binding("left", "choose(-1)", "Previous", show=False, id="files.previous"),
        Binding("right", "choose(1)", "Next", show=False, id="files.next"),
        Binding("escape,enter", "leave", "Back", key_display="Esc", id="files.leave"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chips: list[tuple[str, str]] = []  # names, and what is known of each
        self._in_all = self._warning = ""
        self._chosen = 0

    def show(self, chips: Sequence[tuple[str, str]], in_all: str = "", warning: str = "") -> None:
        """Show the name of each file and what is known of it, the same of all, and a warning."""
        self._chips, self._in_all, self._warning = list(chips), in_all, warning
        self._chosen = min(self._chosen, max(0, len(chips) - 1))
        self.display = bool(chips)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def render(self) -> Content:
        return Content("\n").join(self._lines(self.content_size.width))

    def _lines(self, width: int) -> list[Content]:
        """Chips in up to three lines, among them the chosen one."""
        for first in range(self._chosen + 1):
            lines, n_shown = self._lines_from(first, width)
            if self._chosen < first + n_shown:
                break
        if self._warning:
            lines += Content.styled(f"▲ {self._warning}", "$text-warning").wrap(max(1, width))
        return lines

    def _lines_from(self, first: int, width: int) -> tuple[list[Content], int]:
        lines: list[Content] = []
        row, n_shown = Content(""), 0
        chips = [self._chip(index, width) for index in range(first, min(len(self._chips), first + 3 * MOST_LINES * 8))]
        for chip in chips:
            if row.cell_length and row.cell_length + 1 + chip.cell_length > width:
                if len(lines) == MOST_LINES - 1:
                    break
                lines.append(row)
                row = Content("")
            row = Content.assemble(row, " " if row.cell_length else "", chip)
            n_shown += 1
        lines.append(row)
        n_hidden = len(self._chips) - n_shown
        rest = " · ".join(filter(None, [f"{n_hidden} more" if n_hidden else "", self._in_all]))
        if rest and row.cell_length + 2 + len(rest) <= width:
            lines[-1] = Content.assemble(row, "  ", (rest, "dim"))
        elif rest:
            lines.append(Content.styled(rest[:width], "dim"))
        return lines, n_shown

    def _chip(self, index: int, width: int) -> Content:
        name, about = self._chips[index]
        most = max(SHORTEST, width - len(about) - 5)
        name = one_line(name)
        name = name if len(name) <= most else f"…{name[1 - most :]}"
        cross = Content(CROSS).stylize(Style.from_meta({"@click": f"remove({index})"}))
        is_chosen = self.has_focus and index == self._chosen
        chip = Content.assemble(" ", (name, "bold"), " ", about, " ", cross, " ")
        return chip.stylize_before("reverse" if is_chosen else "on $primary 20%")

    def action_choose(self, step: int) -> None:
        self._chosen = max(0, min(len(self._chips) - 1, self._chosen + step))
        self.refresh(layout=True)

    def action_remove_chosen(self) -> None:
        self.action_remove(self._chosen)

    def action_remove(self, index: int) -> None:
        self.post_message(RemoveFile(index))

    def action_leave(self) -> None:
        self.post_message(LeaveFiles())


def file_blocks(files: Sequence[Attachment], counts: Counts, opened: Collection[int], limit: int) -> list[Block]:
    """A line for each file of a message, which unfolds it, and up to `limit` characters of those `opened`."""
    blocks: list[Block] = []
    for index, file in enumerate(files):
        is_open = index in opened
        click = Style.from_meta({"@click": f"open_file({index})"})
        name = f"{'▾' if is_open else '▸'} {one_line(file.name)}"
        line = Content.assemble((name, "bold"), (f"  {file.described(counts(file))}", "dim")).stylize(click)
        blocks.append(Text(line))
        if is_open:
            text = shown(file.text)
            more = [f"… {len(text) - limit:,} more characters"] if len(text) > limit else []
            blocks += [Text(Content(line), "│ ", "│ ", style="dim") for line in [*text[:limit].split("\n"), *more]]
    return blocks
