"""A widget that renders blocks as lines, and caches them: if a text grows, only its end is rendered again.

Textual's Markdown widget makes a widget of each paragraph: a chat of 40 turns would have 1,600 widgets, and each layout
would take half a second. Here a turn is one widget, and a layout takes milliseconds.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from edgespec.history.search import spans

MARK = "bold reverse $text-warning"  # the style of search matches


@dataclass(frozen=True, slots=True)
class Brush:
    """Draws text in the styles of a widget and its theme."""

    style: Style
    get_style: Callable[[str | Style], Style]
    is_ansi: bool
    is_dark: bool

    def draw(self, content: Content, width: int, style: str = "") -> list[Strip]:
        """Return the lines of a text, wrapped at `width`, in the widget's style with `style` added."""
        base = self._styled(style)
        lines = (line.render(base, "", self.get_style) for line in content.wrap(max(1, width)))
        return [Strip([Segment(text, _rich(base + over)) for text, over in line]) for line in lines]

    def pad(self, strip: Strip, width: int, style: str = "") -> Strip:
        return strip.extend_cell_length(width, _rich(self._styled(style)))

    def _styled(self, style: str) -> Style:
        return self.style + self.get_style(style) if style else self.style


@lru_cache(4096)
def _rich(style: Style) -> RichStyle:
    return style.rich_style


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """A part of a text that is rendered independently; equal blocks look the same.

    `first` precedes its first line and `rest` the other lines; both have the same width. If it `has_gap`, an empty line
    precedes it.
    """

    first: str = ""
    rest: str = ""
    has_gap: bool = False

    @abstractmethod
    def lines(self, brush: Brush, width: int) -> list[Strip]:
        """Return the lines without what precedes them."""

    def draw(self, brush: Brush, width: int) -> list[Strip]:
        lines = self.lines(brush, max(1, width - len(self.first)))
        if self.first:
            first, rest = (brush.draw(Content(lead), len(lead), "dim")[0] for lead in (self.first, self.rest))
            lines = [Strip.join([rest if number else first, line]) for number, line in enumerate(lines)]
        return [Strip([]), *lines] if self.has_gap else lines

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and type(self) is type(other) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def _facts(self) -> Hashable:
        return tuple(_hashable(getattr(self, field.name)) for field in fields(self))


def _hashable(value: object) -> object:
    """Return a value that is equal to another only if the styles of texts are: `Content` compares without them."""
    if isinstance(value, tuple):
        return tuple(map(_hashable, value))
    return (value.plain, *value.spans) if isinstance(value, Content) else value


@dataclass(frozen=True, eq=False)
class Text(Block):
    """A wrapped text."""

    content: Content
    style: str = ""

    def lines(self, brush: Brush, width: int) -> list[Strip]:
        return brush.draw(self.content, width, self.style)


@dataclass(frozen=True, eq=False)
class Fitting(Block):
    """Shows as many of several parts as fit into one line, from the first on."""

    parts: tuple[str, ...]

    def lines(self, brush: Brush, width: int) -> list[Strip]:
        texts = [Content(" · ".join(self.parts[:end])) for end in range(len(self.parts), 0, -1)]
        return brush.draw(next((text for text in texts if text.cell_length <= width), texts[-1]), width, "dim")


class Lines(Widget):
    """Shows blocks one below the other; the text can be selected with the mouse."""

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._blocks: list[Block] = []
        self._drawings: list[list[Strip]] = []  # the lines of each block
        self._lines: list[Strip] = []  # the lines of all blocks
        self._drawn_for: tuple[object, ...] = ()
        self._marked: re.Pattern[str] | None = None

    def mark(self, pattern: re.Pattern[str] | None) -> None:
        """Mark the matches of a pattern (`found_in`), or nothing."""
        if pattern != self._marked:
            self._marked = pattern
            self.refresh()

    @property
    def plain(self) -> str:
        """The lines as shown on the screen."""
        return "\n".join(strip.text.rstrip() for strip in self._drawn())

    def replace(self, keep: int, blocks: Sequence[Block]) -> None:
        """Replace the blocks after the first `keep` with `blocks`."""
        start = keep
        for shown, block in zip(self._blocks[keep:], blocks, strict=False):
            if block != shown:
                break
            keep += 1
        removed = dict(zip(self._blocks[keep:], self._drawings[keep:], strict=False))
        self._blocks[keep:] = blocks[keep - start :]
        if len(self._drawings) < keep or not self._drawn_for:
            if self.is_mounted:
                self.refresh(layout=True)
            return
        n_before = len(self._lines)
        n_kept = n_before - sum(map(len, self._drawings[keep:]))
        del self._lines[n_kept:], self._drawings[keep:]
        self._draw_rest(removed)
        changed = Region(0, n_kept, self.content_size.width, len(self._lines) - n_kept)
        self.refresh(changed, layout=len(self._lines) != n_before)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._drawn(width))

    def render_line(self, y: int) -> Strip:
        lines = self._drawn()
        if y >= len(lines):
            return Strip.blank(self.content_size.width, self.visual_style.rich_style)
        strip = lines[y]
        for found in spans(self._marked, strip.text) if self._marked else ():
            strip = _restyled(strip, found, self._get_style(MARK))
        if self.text_selection is not None and (span := self.text_selection.get_span(y)) is not None:
            strip = _restyled(strip, span, self.screen.get_visual_style("screen--selection"))
        return strip.apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract(self.plain), "\n"

    def _drawn(self, width: int | None = None) -> list[Strip]:
        """Return all lines at this width, in the current colours."""
        style = self.visual_style
        drawn_for = (width or self.content_size.width, style.background, style.foreground, self.app.theme)
        if drawn_for != self._drawn_for:
            self._drawn_for = drawn_for
            self._drawings.clear()
            self._lines.clear()
        if len(self._drawings) < len(self._blocks):
            self._draw_rest({})
        return self._lines

    def _draw_rest(self, known: Mapping[Block, list[Strip]]) -> None:
        """Draw the remaining blocks, or take their lines from `known`."""
        width = self._drawn_for[0]
        assert isinstance(width, int)
        theme = self.app.current_theme
        brush = Brush(self.visual_style, self._get_style, theme.ansi, theme.dark)
        for block in self._blocks[len(self._drawings) :]:
            strips = known.get(block) or block.draw(brush, width)
            self._drawings.append(strips)
            self._lines += strips


def clickable(text: str | Content, action: str) -> Content:
    """Return a text that runs an action of its widget when it is clicked."""
    content = text if isinstance(text, Content) else Content(text)
    return content.stylize(Style.from_meta({"@click": action}))


def quoted(text: str) -> Text:
    """Return a text whose lines follow a bar."""
    return Text(Content(text), "dim", first="│ ", rest="│ ")


def _restyled(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    """Return a line with another style over the characters of `span`, where -1 is the end of the line."""
    start, end = span
    length = len(strip.text)
    cuts = [strip.index_to_cell_position(min(index, length)) for index in (start, length if end == -1 else end)]
    before, within, after = strip.crop(0, cuts[0]), strip.crop(*cuts), strip.crop(cuts[1])
    marked = [Segment(text, (old + style.rich_style) if old else style.rich_style) for text, old, _ in within]
    return Strip.join([before, Strip(marked), after])
