"""The base of all screens: a double click selects a word, what is selected is copied, and a screen closes once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from textual.actions import SkipAction
from textual.await_complete import AwaitComplete
from textual.events import Click, Event
from textual.geometry import Offset, Size
from textual.screen import Screen, ScreenResultType
from textual.selection import Selection
from textual.widget import Widget

from edgespec.tui.lines import Lines, ends_of_character, place_at


class ClosedOnce:
    """A screen that closes once, with those above it. It comes before the class of the screen, from which Textual takes
    the styles."""

    def dismiss(self: Any, result: Any = None) -> AwaitComplete:
        """Close the screen, and those above it, when all of them are mounted: Textual fails to mount a closed screen.

        A second key or click may arrive before it is gone: it has no effect, because Textual would close the screen
        below.
        """
        stack = self.app.screen_stack
        if self not in stack:
            return AwaitComplete()

        def dismiss() -> None:
            self.dismiss(result)  # which may not be awaited here

        for screen in stack[stack.index(self) :]:
            if not screen.is_mounted:
                screen.call_later(dismiss)
                return AwaitComplete()
        while (above := self.app.screen) is not self:  # Textual would close them later, and another screen now
            above.dismiss()
        closed: AwaitComplete = super().dismiss(result)  # type: ignore[misc]
        return closed


class BaseScreen(ClosedOnce, Screen[ScreenResultType]):
    """A screen on which text is selected as in other programs: a word by a double click, a line by a triple click, a
    range by dragging. The selection is copied when the button is released."""

    _copied: Mapping[Widget, Selection] | None = None  # the last selection that was copied

    def _screen_resized(self, size: Size) -> None:
        """Lay out for the size that the terminal has now.

        The size of a message may be an older one. The layout would post it again, and so would that of the newer size:
        two such messages that Textual 8.2.8 cannot merge would follow each other for ever.
        """
        super()._screen_resized(self.app.size)

    def validate_selections(self, selections: dict[Widget, Selection]) -> dict[Widget, Selection]:
        """Include the character under the pointer where a range ends: Textual does so only within one message.

        An emoji of several characters is selected as a whole.
        """
        whole = {}
        for widget, (start, end) in selections.items():
            if start is None and end is not None:
                end += Offset(1, 0)
            if isinstance(widget, Lines) and widget.is_attached:
                start = start and Offset(ends_of_character(widget.line_text(start.y), start.x)[0], start.y)
                end = end and Offset(ends_of_character(widget.line_text(end.y), end.x)[1], end.y)
            whole[widget] = Selection(start, end)
        return whole

    def get_selected_text(self) -> str | None:
        """Return the selected text in the order of the screen, with an empty line between messages."""
        texts = []
        for widget in self.walk_children(Widget) if self.selections else ():
            selection = self.selections.get(widget)
            if selection is not None and isinstance(widget, Lines) and widget.allow_select:
                selected = widget.get_selection(selection)
                texts.append(selected[0].strip("\n") if selected else "")
        return "\n\n".join(filter(None, texts)) or None

    def on_text_selected(self) -> None:
        """Copy what is selected, once."""
        if self.selections and self.selections is not self._copied:
            self._copied = self.selections
            with suppress(SkipAction):  # there is no text
                super().action_copy_text()

    def action_copy_text(self) -> None:
        """Copy what is selected, once. Otherwise Ctrl+C stops or quits, as without a selection."""
        if self.selections is self._copied:
            self.clear_selection()
        self._copied = self.selections
        super().action_copy_text()

    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """Return the widget at a place, and the place in its text.

        A widget that was removed is shown until the next layout, and Textual 8.2.8 would look for its parent. Textual
        also takes the right half of a wide character for the next one, and miscounts the cells of joined characters.
        """
        widget, offset = super().get_widget_and_offset_at(x, y)
        if widget is None or not widget.is_attached:
            return None, None
        if offset is not None and isinstance(widget, Lines):
            left, top = self.find_widget(widget).region.offset + widget.gutter.top_left
            offset = place_at(widget.render_line(y - top), x - left) or offset
        return widget, offset

    def _forward_event(self, event: Event) -> None:
        """Select a word or a line, which Textual 8.2.8 does not."""
        is_double = isinstance(event, Click) and not event.is_forwarded and event.button == 1 and event.chain > 1
        super()._forward_event(event)
        if is_double and isinstance(event, Click):
            self._select_around(event.screen_offset, whole_line=event.chain > 2)

    def _select_around(self, pointed: Offset, *, whole_line: bool) -> None:
        """Select the word or the line that is shown at a place."""
        widget, place = self.get_widget_and_offset_at(*pointed)
        if place is None or not isinstance(widget, Lines) or not widget.allow_select:
            return
        selection = widget.around(place, whole_line=whole_line)
        if selection is not None:
            self.selections = {widget: selection}
            self.on_text_selected()

    def _select_all_in_widget(self, widget: Widget) -> None:
        """Do nothing: Textual calls this after a double click, when a word is selected."""
