"""A widget that renders blocks as lines, and caches them: if a text grows, only its end is rendered again.

Textual's Markdown widget makes a widget of each paragraph: a chat of 40 turns would have 1,600 widgets, and each layout
would take half a second. Here a turn is one widget, and a layout takes milliseconds.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise

from rich.cells import split_graphemes
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.geometry import Offset, Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from edgespec.history.search import spans
from edgespec.text.clusters import cluster_end, cluster_start
from edgespec.text.printable import printable
from edgespec.text.words import word_at

MARK, CURRENT = "bold reverse $text-warning", "bold reverse $text-success"  # the styles of search matches
SOLID = RichStyle(dim=False, reverse=False)  # a selection is legible over any style
DECORATION = " ▌│"  # what precedes a line without being text


@dataclass(frozen=True, slots=True)
class Brush:
    """Draws text in the styles of a widget and its theme."""

    style: Style
    get_style: Callable[[str | Style], Style]
    is_ansi: bool
    is_dark: bool

    def draw(self, content: Content, width: int, style: str = "") -> list[Strip]:
        """Return the lines of a text, wrapped at `width`, in the widget's style with `style` added."""
        return [line.strip for line in self.wrap(content, width, style)]

    def wrap(self, content: Content, width: int, style: str = "") -> list[Line]:
        """Return the same lines, and how a copy joins them."""
        base, lines = self._styled(style), list[Line]()
        for paragraph in content.split("\n", allow_blank=True):
            whole, end = paragraph.expand_tabs(), 0
            for number, part in enumerate(whole.wrap(max(1, width))):
                segments = [Segment(text, _rich(base + over)) for text, over in part.render(base, "", self.get_style)]
                text = part.plain.strip()
                start = max(end, whole.plain.find(text, end))
                if number:
                    lead = len(part.plain) - len(part.plain.lstrip())
                    lines.append(Line(Strip(segments), whole.plain[end:start], lead))
                else:
                    lines.append(Line(Strip(segments)))
                end = start + len(text)
        return lines

    def pad(self, strip: Strip, width: int, style: str = "") -> Strip:
        return strip.extend_cell_length(width, _rich(self._styled(style)))

    def _styled(self, style: str) -> Style:
        return self.style + self.get_style(style) if style else self.style


@dataclass(frozen=True, slots=True)
class Line:
    """A line on the screen. A copy has its text after the first `lead` characters, and before it the `joint`.

    The joint is a line break, or what was in the text where it was wrapped. None: the line is no text, and not copied.
    """

    strip: Strip
    joint: str | None = "\n"
    lead: int = 0

    @property
    def continues(self) -> bool:
        """True if the text of the line before is continued."""
        return self.joint not in ("\n", None)


@lru_cache(4096)
def _rich(style: Style) -> RichStyle:
    return style.rich_style


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """A part of a text that is rendered independently; equal blocks look the same.

    `first` precedes its first line and `rest` the other lines; both have the same width. If it `has_gap`, an empty line
    precedes it. Without `is_text` it cannot be selected.
    """

    first: str = ""
    rest: str = ""
    has_gap: bool = False
    is_text: bool = True

    @abstractmethod
    def lines(self, brush: Brush, width: int) -> list[Line]:
        """Return the lines without what precedes them."""

    def draw(self, brush: Brush, width: int) -> list[Line]:
        lines = self.lines(brush, max(1, width - len(self.first)))
        if self.first:
            leads = [brush.draw(Content(lead), len(lead), "dim")[0] for lead in (self.first, self.rest)]
            skipped = [0 if self.first.strip(DECORATION) else len(self.first), len(self.rest)]
            lines = [
                replace(line, strip=Strip.join([leads[number > 0], line.strip]), lead=line.lead + skipped[number > 0])
                for number, line in enumerate(lines)
            ]
        if not self.is_text:
            lines = [replace(line, joint=None) for line in lines]
        return [Line(Strip([])), *lines] if self.has_gap else lines

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
class WrappedText(Block):
    """A wrapped text."""

    content: Content
    style: str = ""

    def lines(self, brush: Brush, width: int) -> list[Line]:
        return brush.wrap(self.content, width, self.style)


@dataclass(frozen=True, eq=False)
class Fitting(Block):
    """Shows as many of several parts as fit into one line, from the first on."""

    parts: tuple[str, ...]

    def lines(self, brush: Brush, width: int) -> list[Line]:
        texts = [Content(" · ".join(self.parts[:end])) for end in range(len(self.parts), 0, -1)]
        fitting = next((text for text in texts if text.cell_length <= width), texts[-1])
        return [Line(strip, None) for strip in brush.draw(fitting, width, "dim")]


class Lines(Widget):
    """Shows blocks one below the other; their text can be selected with the mouse."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._blocks: list[Block] = []
        self._drawings: list[list[Line]] = []  # the lines of each block
        self._lines: list[Line] = []  # the lines of all blocks
        self._drawn_for: tuple[object, ...] = ()
        self._marked: re.Pattern[str] | None = None
        self._current: int | None = None  # the line whose matches are marked as the ones that were gone to
        self._selected_width = 0  # when the selection was made

    def mark(self, pattern: re.Pattern[str] | None) -> None:
        """Mark the matches of a pattern (`found_in`), or nothing."""
        if pattern != self._marked:
            self._marked = pattern
            self.refresh()

    def mark_line(self, y: int | None) -> None:
        """Mark the matches of a line in another way than the others."""
        if y != self._current:
            self._current = y
            self.refresh()

    def matches(self) -> list[int]:
        """Return the lines that have a marked match."""
        marked = self._marked
        return [y for y, line in enumerate(self._drawn()) if marked is not None and spans(marked, line.strip.text)]

    @property
    def plain(self) -> str:
        """The lines as shown on the screen."""
        return "\n".join(line.strip.text.rstrip() for line in self._drawn())

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
        if not 0 <= y < len(lines):
            return Strip.blank(self.content_size.width, self.visual_style.rich_style)
        strip = lines[y].strip
        for match in spans(self._marked, strip.text) if self._marked else ():
            strip = _restyled(strip, match, self._get_style(CURRENT if y == self._current else MARK).rich_style)
        if self.text_selection is not None and (span := _selected(lines[y], y, self.text_selection)) is not None:
            strip = _restyled(strip, span, SOLID + self.screen.get_visual_style("screen--selection").rich_style)
        return strip.apply_offsets(0, y)

    def selection_updated(self, selection: Selection | None) -> None:
        super().selection_updated(selection)
        self._selected_width = self.content_size.width

    def on_resize(self) -> None:
        """Drop a selection if the lines are wrapped elsewhere now."""
        if self.text_selection is not None and self._selected_width != self.content_size.width:
            self.screen.clear_selection()

    # --- selection ------------------------------------------------------------------------------------------------

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        """Return the selected text without the line breaks of the wrapping."""
        parts: list[str] = []
        for y, line in enumerate(self._drawn()):
            span = _selected(line, y, selection)
            if span is not None:
                parts += [line.joint or "", line.strip.text[slice(*span)].rstrip()]
        return "".join(parts[1:]), "\n"

    def line_text(self, y: int) -> str:
        """Return the text of a line; "" before the first one and after the last one."""
        lines = self._drawn()
        return lines[y].strip.text if 0 <= y < len(lines) else ""

    def around(self, place: Offset, *, whole_line: bool) -> Selection | None:
        """Return the word or the line at a place, also if it is wrapped; None if there is no text."""
        lines = self._drawn()
        if not 0 <= place.y < len(lines) or lines[place.y].joint is None:
            return None
        first, last = place.y, place.y + 1
        while lines[first].continues:
            first -= 1
        while last < len(lines) and lines[last].continues:
            last += 1
        text, places = "", list[Offset]()
        for y, line in enumerate(lines[first:last], first):
            joint = line.joint if y > first and line.joint else ""
            shown = line.strip.text.rstrip()
            text += joint + shown[line.lead :]
            places += [*[Offset(-1, y)] * len(joint), *(Offset(x, y) for x in range(line.lead, len(shown)))]
        if not places or (not whole_line and place not in places):
            return None
        start, end = (0, len(text)) if whole_line else word_at(text, places.index(place))
        return Selection(places[start], places[end - 1] + (1, 0))

    def _drawn(self, width: int | None = None) -> list[Line]:
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

    def _draw_rest(self, known: Mapping[Block, list[Line]]) -> None:
        """Draw the remaining blocks, or take their lines from `known`."""
        width = self._drawn_for[0]
        assert isinstance(width, int)
        theme = self.app.current_theme
        brush = Brush(self.visual_style, self._get_style, theme.ansi, theme.dark)
        for block in self._blocks[len(self._drawings) :]:
            drawn = known.get(block) or block.draw(brush, width)
            self._drawings.append(drawn)
            self._lines += drawn


class Prose(Lines):
    """A text of the program that can be selected."""

    def __init__(self, text: str | Content = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.update(text)

    def update(self, text: str | Content) -> None:
        """Show another text."""
        self.replace(0, [WrappedText(text if isinstance(text, Content) else Content(shown(text)))])


def clickable(text: str | Content, action: str | tuple[str, tuple[object, ...]]) -> Content:
    """Return a text that runs an action of its widget when it is clicked: by its name, or with arguments.

    The subject of the action may have changed or gone when the click arrives.
    """
    content = text if isinstance(text, Content) else Content(text)
    return content.stylize(Style.from_meta({"@click": action}))


def shown(text: str) -> str:
    """Return a text without control characters."""
    return printable(text.replace("\r\n", "\n"))


def cut_off(text: str, limit: int) -> str:
    """Return a text up to `limit` characters, and below it how many more there are."""
    return text if len(text) <= limit else f"{text[:limit]}\n… {len(text) - limit:,} more characters"


def quoted(text: str) -> WrappedText:
    """Return a text whose lines follow a bar."""
    return WrappedText(Content(text), "dim", first="│ ", rest="│ ")


def _selected(line: Line, y: int, selection: Selection) -> tuple[int, int] | None:
    """Return which characters of a line are selected."""
    span = selection.get_span(y) if line.joint is not None else None
    if span is None:
        return None
    start, end = max(span[0], line.lead), len(line.strip.text)
    return start, max(start, end if span[1] == -1 else min(end, span[1]))


def _restyled(strip: Strip, span: tuple[int, int], style: RichStyle) -> Strip:
    """Return a line with another style over the characters of `span`."""
    first, last = span
    if first >= last:
        return strip
    # By characters: Textual's cells of joined characters do not add up to those of their line.
    first, last = ends_of_character(strip.text, first)[0], ends_of_character(strip.text, last)[1]
    parts, at = list[Segment](), 0
    for text, old, _ in strip:
        cuts = sorted({0, len(text), *(min(len(text), max(0, place - at)) for place in (first, last))})
        for start, end in pairwise(cuts):
            is_within = first <= at + start < last
            parts.append(Segment(text[start:end], (old + style if old else style) if is_within else old))
        at += len(text)
    return Strip(parts)


def ends_of_character(text: str, index: int) -> tuple[int, int]:
    """Return the ends of the visible character that an index divides; the index twice if it divides none."""
    start = cluster_start(text, min(index + 1, len(text)))
    return (start, cluster_end(text, start)) if start < index < len(text) else (index, index)


def with_whole_characters(strip: Strip) -> Strip:
    """Return a line in which no visible character is divided by a change of style, as Textual's cursor divides it."""
    text, at, length = strip.text, 0, strip.cell_length
    ends = [at := at + len(part) for part, _, _ in strip]
    if all(ends_of_character(text, end) == (end, end) for end in ends):
        return strip
    parts, start = list[Segment](), 0
    for (_, style, control), end in zip(strip, ends, strict=True):
        end = max(start, ends_of_character(text, end)[1])
        parts.append(Segment(text[start:end], style, control))
        start = end
    return Strip(parts).adjust_cell_length(length)


def place_at(line: Iterable[Segment], cell: int) -> Offset | None:
    """Return the place in the text of a widget that is drawn at a cell of a line; None where no text is."""
    if cell < 0:
        return None
    for text, style, _ in line:
        place = style.meta.get("offset") if style is not None else None
        for start, _end, width in split_graphemes(text)[0]:
            if cell < width:
                return Offset(place[0] + start, place[1]) if place and place[1] is not None else None
            cell -= width
    return None
