"""An input field that grows, remembers what was sent, and folds large pastes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.events import Key, Paste, Resize
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea
from textual.widgets.text_area import EditResult, Location, Selection

from edgespec.chat.paths import pasted_files
from edgespec.text.line_ends import with_unix_line_ends
from edgespec.text.printable import printable

LONG = 10_000  # minimum characters of a folded text: the field is wrapped and drawn at every key
HINTS = (
    "Write a message · Enter sends · Ctrl+J new line · / commands",
    "Enter sends · Ctrl+J new line · / commands",
    "Enter sends · / commands",
)


@dataclass
class Submitted(Message):
    """A message or command was sent."""

    text: str


@dataclass
class Paged(Message):
    """A page up (-1) or down (1) was requested, which the field does not have."""

    step: int


@dataclass
class FilesPasted(Message):
    """The paths of files were pasted, as terminals do when a file is dragged onto them."""

    text: str


@dataclass
class FilesUnpasted(Message):
    """The last of these pastes is text after all."""


class EnterSubmits(TextArea):
    """A field where Enter submits what was typed before it, and where keys act in order.

    Textual looks up a binding when its key has reached the app; letters typed meanwhile would be handled before it, and
    a priority binding would be handled before them.
    """

    async def _on_key(self, event: Key) -> None:
        is_done = event.key == "enter"
        if is_done:
            self.action_submit()
        elif not event.is_printable and (bound := self.screen.active_bindings.get(event.key)) is not None:
            is_own = bound.node in (self, self.parent)
            is_done = is_own and await self.app.run_action(bound.binding.action, bound.node)
        if is_done:
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def action_submit(self) -> None:
        raise NotImplementedError


class PromptInput(EnterSubmits):
    """Enter sends. Up and down go through `history`, oldest first, from the first and the last line.

    A long text is shown as `[pasted text: 1,048,576 characters]`, which is one character for keys; it is sent in full.
    """

    DEFAULT_CSS = """
    PromptInput {
        height: auto;
        max-height: 34vh;
        border: round $border-blurred;
        padding: 0 1;
        background: transparent;
        scrollbar-size-vertical: 1;
        border-subtitle-color: $text-muted;
        border-subtitle-style: none;
        &:focus { border: round $border; }
        &.-warning { border-subtitle-color: $text-warning; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Send", id="composer.send"),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", show=False, id="composer.newline"),
        Binding("f6", "app.call('persona')", show=False),  # selects a line in the base class
    ]

    def __init__(self, history: Sequence[str] = (), *, id: str | None = None) -> None:
        self._folded: dict[str, str] = {}  # folded texts by placeholder; the base class needs it at once
        super().__init__(id=id, highlight_cursor_line=False, placeholder=HINTS[0])
        self.cursor_blink = False
        self._pasted = "", ""  # the paths that were pasted last, and the text then
        self.is_recalled = False  # the text is an unchanged one from the history
        self._known_size = Size()
        self._history = list(history)
        self._position = len(self._history)
        self._draft = ""

    @property
    def full_text(self) -> str:
        """The text with everything that is folded."""
        if not self._folded:
            return self.text
        pattern = "|".join(map(re.escape, self._folded))
        return re.sub(pattern, lambda found: self._folded[found.group()], self.text)

    def put(self, text: str) -> None:
        """Replace the text with `text`; undo restores it."""
        self.replace(text, (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def remember(self, text: str) -> None:
        """Add `text` to the history, and leave it."""
        if text and self._history[-1:] != [text]:
            self._history.append(text)
        self._position = len(self._history)

    # --- keys -----------------------------------------------------------------------------------------------------

    def action_submit(self) -> None:
        text = self.full_text
        if not text.strip():
            return
        self.remember(text)
        self.put("")
        self._folded.clear()
        self.history.clear()
        self.post_message(Submitted(text))

    async def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        self.take_paste(event.text)

    def take_paste(self, text: str) -> None:
        """Offer paths of files as attachments, which undo turns into text, and insert any other text."""
        if not self.text.startswith("/") and pasted_files(text):
            self._pasted = text, self.text
            self.post_message(FilesPasted(text))
        else:
            self._replace_via_keyboard(text, *self.selection)

    def action_undo(self) -> None:
        pasted, text = self._pasted
        self._pasted = "", ""
        if pasted and text == self.text:
            self.insert(pasted)
            self.post_message(FilesUnpasted())
        else:
            super().action_undo()

    def action_newline(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_cursor_up(self, select: bool = False) -> None:
        if select or self._line_of_cursor() > 0 or not self._recall(-1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if select or self._line_of_cursor() < self.wrapped_document.height - 1 or not self._recall(1):
            super().action_cursor_down(select)

    def action_cursor_page_up(self) -> None:
        self.post_message(Paged(-1))

    def action_cursor_page_down(self) -> None:
        self.post_message(Paged(1))

    def action_copy(self) -> None:
        """Copy the selection; without one the key is handled elsewhere."""
        if self.selection.is_empty:
            raise SkipAction
        super().action_copy()

    def _line_of_cursor(self) -> int:
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    def _recall(self, step: int) -> bool:
        """Show the next text of the history; after the last one the unsent text."""
        position = self._position + step
        if not 0 <= position <= len(self._history):
            return False
        if self._position == len(self._history):
            self._draft = self.full_text
        self._position = position
        self.put(self._draft if position == len(self._history) else self._history[position])
        self.is_recalled = True
        return True

    # --- long texts -----------------------------------------------------------------------------------------------

    def replace(
        self, insert: str, start: Location, end: Location, *, maintain_selection_offset: bool = True
    ) -> EditResult:
        start, end = self._around(*sorted((start, end)))
        self.is_recalled = False
        text = self._fold(with_unix_line_ends(insert))
        return super().replace(text, start, end, maintain_selection_offset=maintain_selection_offset)

    def delete(self, start: Location, end: Location, *, maintain_selection_offset: bool = True) -> EditResult:
        start, end = self._around(*sorted((start, end)))
        self.is_recalled = False
        return super().delete(start, end, maintain_selection_offset=maintain_selection_offset)

    def validate_selection(self, selection: Selection) -> Selection:
        """The cursor skips placeholders."""
        forwards = selection.end >= self.selection.end
        return Selection(self._outside(selection.start, forwards), self._outside(selection.end, forwards))

    def get_line(self, line_index: int) -> Text:
        """A line that is safe to draw."""
        line = self.document.get_line(line_index)
        text = Text(printable(line), end="", no_wrap=True)
        for start, end in self._labels(line_index):
            text.stylize("reverse", start, end)
        return text

    def _fold(self, text: str) -> str:
        if len(text) <= LONG:
            return text
        number = ""
        while True:
            label = f"[pasted text{number}: {len(text):,} characters]"
            if self._folded.setdefault(label, text) == text:
                return label
            number = f" {int(number or 1) + 1}"

    def _labels(self, row: int) -> list[tuple[int, int]]:
        """The placeholders in a line."""
        if not self._folded or row >= self.document.line_count:
            return []
        return [found.span() for label in self._folded for found in re.finditer(re.escape(label), self.document[row])]

    def _around(self, start: Location, end: Location) -> tuple[Location, Location]:
        """A range, extended to whole placeholders."""
        (top, left), (bottom, right) = start, end
        parts = {top: (left, right)} if top == bottom else {top: (left, sys.maxsize), bottom: (0, right)}
        for row, (low, high) in parts.items():
            for label in self._labels(row):
                if label[0] < high and low < label[1]:
                    start, end = min(start, (row, label[0])), max(end, (row, label[1]))
        return start, end

    def _outside(self, location: Location, forwards: bool) -> Location:
        row, column = location
        for start, end in self._labels(row):
            if start < column < end:
                return row, end if forwards else start
        return location

    def render_line(self, y: int) -> Strip:
        """If something scrolls during a layout change, Textual resizes a widget without notifying it."""
        if self.size != self._known_size:
            self._known_size = self.size
            self.post_message(Resize(self.size, self.virtual_size, self.container_size))
        return super().render_line(y)

    def on_resize(self, event: Resize) -> None:
        self._known_size = event.size
        hint = next((hint for hint in HINTS if len(hint) < self.content_size.width), HINTS[-1])
        if hint != self.placeholder:
            self.placeholder = hint
            self.refresh(layout=True)
