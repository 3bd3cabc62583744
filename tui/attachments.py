"""Attached files: above the field for messages, and as folded lines in a message that was sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from textual.content import Content
from textual.widgets import Static

from edgespec.chat.attachments import Attachment, described
from edgespec.text.printable import one_line
from edgespec.tui.lines import Block, Text, clickable, quoted
from edgespec.tui.live_answer import shown

CROSS = "\N{MULTIPLICATION SIGN}"
MOST_LINES = 4  # files that are listed
LONGEST = 40  # characters of a name; of a longer one the end is shown


class AttachmentBar(Static):
    """The attached files, each with a cross that removes it, and a warning below them. Hidden without files."""

    DEFAULT_CSS = """
    AttachmentBar { display: none; height: auto; padding: 0 1; }
    """

    def show(self, files: Sequence[tuple[str, str]], in_all: str = "", warning: str = "") -> None:
        """Show the name of each file and its size, the size of all of them, and a warning."""
        self.display = bool(files)
        lines = [_line(index, *file) for index, file in enumerate(files[:MOST_LINES])]
        if in_all:
            more = "… " if len(files) > MOST_LINES else ""
            lines.append(Content.styled(f"{more}{in_all}", "dim"))
        if warning:
            lines.append(Content.styled(f"▲ {warning}", "$text-warning"))
        self.update(Content("\n").join(lines))


def _line(index: int, name: str, about: str) -> Content:
    name = one_line(name)
    name = name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
    cross = clickable(CROSS, f"app.remove_file({index})")
    return Content.assemble(" ", (name, "bold"), f" {about} ", cross, " ").stylize_before("on $primary 20%")


def file_blocks(files: Sequence[Attachment], opened: Collection[int], limit: int) -> list[Block]:
    """Return a line for each file of a message, which unfolds it, and up to `limit` characters of the `opened` ones."""
    blocks: list[Block] = []
    for index, file in enumerate(files):
        is_open = index in opened
        name = f"{'▾' if is_open else '▸'} {one_line(file.name)}"
        line = Content.assemble((name, "bold"), (f"  {described([file])}", "dim"))
        blocks.append(Text(clickable(line, f"open_file({index})")))
        if is_open:
            text = shown(file.text)
            more = f"\n… {len(text) - limit:,} more characters" if len(text) > limit else ""
            blocks.append(quoted(text[:limit] + more))
    return blocks
