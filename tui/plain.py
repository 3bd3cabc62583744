"""Textual's widgets as the chat uses them: a string is text, and never markup or a control character.

Textual reads the strings of labels, lists, titles and tooltips as markup by default. A title of a chat or the name of a
model would then be styled or clickable, or end the program. All other modules of the screen import their widgets here.
"""

from __future__ import annotations

from typing import Any, Literal

from textual import containers, widgets
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.visual import VisualType
from textual.widget import Widget

from edgespec.text.printable import printable


def _content(text: object) -> Any:
    """Return a string as text without control characters; anything else stays as it is."""
    return Content(printable(text)) if isinstance(text, str) else text


class Plain(Widget):
    """A widget whose titles and tooltips are text.

    It is the second base of other classes: Textual takes styles only from the first one.
    """

    def render_str(self, text_content: str | Content) -> Content:
        """Return the text of a title or a label."""
        shown: Content = _content(text_content)
        return shown

    @property
    def tooltip(self) -> VisualType | None:
        return super().tooltip

    @tooltip.setter
    def tooltip(self, tooltip: VisualType | None) -> None:
        Widget.tooltip.fset(self, _content(tooltip))  # type: ignore[attr-defined]


class Static(widgets.Static, Plain):
    """A text of the program, which cannot be selected: a `Prose` can."""

    ALLOW_SELECT = False

    def __init__(self, content: VisualType = "", **options: Any) -> None:
        super().__init__(_content(content), markup=False, **options)

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        super().update(_content(content), layout=layout)


class ChangingList(widgets.OptionList):
    """A list whose options may change before input for them arrives, or that has no column for them. Both would end
    Textual 8.2.8.

    It is the second base of other classes, as `Plain`.
    """

    async def _on_click(self, event: Click) -> None:
        if event.style.meta.get("option", -1) >= self.option_count:  # it has gone since it was drawn
            event.prevent_default()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return super().get_content_height(container, viewport, max(width, self._padding + 1))

    def _update_lines(self) -> None:
        width = self.scrollable_content_region.width  # 0 until the list has its styles, which the others need
        if width and width > self._padding + self._get_left_gutter_width():
            super()._update_lines()

    @property
    def _padding(self) -> int:
        """The columns on both sides of an option."""
        return self.get_component_styles("option-list--option").padding.width

    def _move_page(self, direction: Literal[-1, 1]) -> None:
        if self.scrollable_content_region:  # there are no lines of options that have no room on the screen
            super()._move_page(direction)


class OptionList(ChangingList, Plain):
    """A list to choose from."""

    def __init__(self, *options: Any, **others: Any) -> None:
        super().__init__(*options, markup=False, **others)


class Input(widgets.Input, Plain):
    """A field for a line."""


class TextArea(widgets.TextArea, Plain):
    """A field for a text."""


class Container(containers.Container, Plain):
    """Holds widgets."""


class Horizontal(containers.Horizontal, Plain):
    """Holds widgets next to each other."""


class Vertical(containers.Vertical, Plain):
    """Holds widgets one below the other."""


class VerticalScroll(containers.VerticalScroll, Plain):
    """Holds widgets one below the other, and scrolls."""
